"""The cheapest way to let a model run, in a matrix of sets.

Theory. An expression stands for a family of model sets, its *alternatives*, in an order: a name is one alternative of
one model; ``a | b`` has those of a, then those of b; ``a & b`` has each of a joined with each of b, as two nested loops
give them. Every alternative of every set may run. The one chosen for a target holds it and the running models that cost
most together; of equals the first. Sets are tried in the order of the file, but behind the sets they refer to.

Products are never expanded. Only the target and the running models count in one question, so an alternative is as good
as its *projection* on these, and one whose projection lies within another's can be dropped: every running model costs
something. llama-swap drops at each operator; of equal projections the first stays, a greater one joins at the end. Ties
depend on that order, so it is kept.

Such a frontier can still be large (15 pairs of running models have 2^15), so it is built only where it must be. Parts
of an ``&`` that share no model of the question are independent: the first best of each, joined, is the first best of
all. `MatrixQuery.upper_bound` says what a set can keep at most, so that a set that cannot beat the best one is not
opened. Models are bits of an integer. An alternative carries all its models and is masked to be compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence


class SetNode:
    """One operator or name. Immutable; sets that refer to another share its node."""

    __slots__ = ("children", "first", "height", "is_all", "leaves", "support")

    def __init__(self, children: Sequence[SetNode], *, is_all: bool, support: int, first: int) -> None:
        self.children = tuple(children)
        self.is_all = is_all
        """True if the children run together; else one of them does."""
        self.support = support
        """All models that occur below."""
        self.first = first
        """The first alternative."""
        self.height: int = 1 + max((child.height for child in children), default=0)
        names = bool(children) and not any(child.children for child in children)
        self.leaves = {child.support: at for at, child in reversed([*enumerate(children)])} if names else {}
        """If all children are names: the first place of each."""

    @classmethod
    def leaf(cls, bit: int) -> SetNode:
        return cls((), is_all=False, support=bit, first=bit)

    @classmethod
    def any_of(cls, children: Sequence[SetNode]) -> SetNode:
        return cls(children, is_all=False, support=_union(n.support for n in children), first=children[0].first)

    @classmethod
    def all_of(cls, children: Sequence[SetNode]) -> SetNode:
        first = _union(child.first for child in children)
        return cls(children, is_all=True, support=_union(n.support for n in children), first=first)


class MatrixQuery:
    """One decision's question to many sets; holds the answers for the nodes that they share.

    ``costs`` are those of the running models, each at least 1; ``target`` is the bit of a model that does not run, or
    0. In the methods, ``must`` is that bit or 0: alternatives without it are left out; the node then has it somewhere.
    """

    def __init__(self, costs: Mapping[int, int], target: int) -> None:
        self._costs = costs
        self._relevant = _union(costs) | target
        self._bounds: dict[tuple[SetNode, int], int] = {}
        self._bests: dict[tuple[SetNode, int], tuple[int, int]] = {}
        self._frontiers: dict[tuple[SetNode, int], Sequence[int]] = {}

    def upper_bound(self, node: SetNode, must: int) -> int:
        """Return an upper bound for the cost that any alternative keeps; cheap, and too high if children share a
        model.
        """
        if not node.support & self._relevant:
            return 0
        if not node.children:
            return self._costs.get(node.support, 0)
        found = self._bounds.get((node, must))
        if found is None:
            if node.is_all:
                found = self._bound_of_all(node.children, must)
            elif node.leaves:
                found = max(self._costs.get(bit, 0) for bit in bits_of(node.support & (must or self._relevant)))
            else:
                found = max(self.upper_bound(child, must) for child in self._candidates(node, must))
            self._bounds[node, must] = found
        return found

    def _bound_of_all(self, children: Sequence[SetNode], must: int) -> int:
        most = sum(self.upper_bound(child, 0) for child in children)
        if must:  # one of them gives up what it must for the target
            able = (child for child in children if child.support & must)
            most -= min(self.upper_bound(child, 0) - self.upper_bound(child, must) for child in able)
        return most

    def best(self, node: SetNode, must: int) -> tuple[int, int]:
        """Return the cost that the first best alternative keeps, and the alternative."""
        if not node.support & self._relevant:
            return 0, node.first
        if not node.children:
            return self._costs.get(node.support, 0), node.support
        found = self._bests.get((node, must))
        if found is None:
            found = self._best_of_all(node, must) if node.is_all else self._best_of_any(node, must)
            self._bests[node, must] = found
        return found

    def _best_of_any(self, node: SetNode, must: int) -> tuple[int, int]:
        best = -1, 0
        for child in self._candidates(node, must):
            found = self.best(child, must)
            if found[0] > best[0]:
                best = found
        return best

    def _candidates(self, node: SetNode, must: int) -> list[SetNode]:
        """Return children that meet the request; there is at least one. Those that share nothing with the question
        cannot.
        """
        wanted = must or self._relevant
        if node.leaves:
            places = [node.leaves[bit] for bit in bits_of(node.support & wanted)]
            return [node.children[place] for place in sorted(places)]
        return [child for child in node.children if child.support & wanted]

    def _best_of_all(self, node: SetNode, must: int) -> tuple[int, int]:
        kept = alternative = 0
        for part in self._independent(node.children):
            if len(part) == 1:
                best = self.best(part[0], must & part[0].support)
            else:
                best = self._best_product(part, must & _union(child.support for child in part))
            kept += best[0]
            alternative |= best[1]
        return kept, alternative

    # The last part is not joined to the frontier of the others: the search over both ends at the bound, often at once.
    # An alternative needs the target's bit. If only one part can have the bit, its frontier is built with it, which is
    # smaller. If several parts can have it, none of them has to, so the finished alternatives are filtered instead.
    def _best_product(self, children: Sequence[SetNode], must: int) -> tuple[int, int]:
        """Do the last step without a frontier: the alternative that keeps the most is not within any other."""
        *others, last = children
        only_one_has_it = sum(child.support & must != 0 for child in children) == 1
        needed = must if only_one_has_it else 0
        left = self._product(others, needed & _union(child.support for child in others))
        right = self._frontier(last, needed & last.support)
        most = self._bound_of_all(children, must)
        best = -1, 0
        for alternative in (one | other for one in left for other in right):
            if alternative & must == must and (kept := self._kept(alternative)) > best[0]:
                best = kept, alternative
                if kept == most:
                    break
        return best

    def _independent(self, children: Sequence[SetNode]) -> list[list[SetNode]]:
        """Return the children in groups that share no model of the question; order is kept within a group."""
        groups: list[tuple[int, list[int]]] = []
        for number, child in enumerate(children):
            relevant, numbers = child.support & self._relevant, [number]
            apart: list[tuple[int, list[int]]] = []
            for group in groups:
                if group[0] & relevant:
                    relevant |= group[0]
                    numbers += group[1]
                else:
                    apart.append(group)
            groups = [*apart, (relevant, numbers)]
        return [[children[number] for number in sorted(numbers)] for _, numbers in groups]

    def _kept(self, alternative: int) -> int:
        return sum(self._costs.get(bit, 0) for bit in bits_of(alternative & self._relevant))

    # ---- frontiers ---------------------------------------------------------------------------------------------------

    def _frontier(self, node: SetNode, must: int) -> Sequence[int]:
        """Return the alternatives that no other one contains, in order."""
        if not node.support & self._relevant:
            return (node.first,)
        if not node.children:
            return (node.support,)
        found = self._frontiers.get((node, must))
        if found is None:
            if node.is_all:
                found = self._product(node.children, must)
            else:
                able = self._candidates(node, must)
                found = self._maximal(one for child in able for one in self._frontier(child, must))
            self._frontiers[node, must] = found
        return found

    def _product(self, children: Sequence[SetNode], must: int) -> Sequence[int]:
        only_one_has_it = sum(child.support & must != 0 for child in children) == 1
        joined: Sequence[int] = (0,)
        for child in children:
            needed = must & child.support if only_one_has_it else 0
            right = self._frontier(child, needed)
            joined = self._maximal(one | other for one in joined for other in right)
        return joined if only_one_has_it else [one for one in joined if one & must == must]

    def _maximal(self, alternatives: Iterable[int]) -> Sequence[int]:
        """Drop alternatives whose projection is within another's; of equal ones keep the first, in their order."""
        kept: dict[int, int] = {}
        for alternative in alternatives:
            projection = alternative & self._relevant
            if projection in kept:
                continue
            for other in kept:
                if projection & other == projection:
                    break
            else:
                for less in [other for other in kept if other & projection == other]:
                    del kept[less]
                kept[projection] = alternative
        return tuple(kept.values())


def bits_of(mask: int) -> Iterator[int]:
    """Return each bit on its own, the lowest first."""
    while mask:
        bit = mask & -mask
        yield bit
        mask ^= bit


def _union(masks: Iterable[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union
