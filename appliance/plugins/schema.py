"""JSON schemas, for plugins: references lead nowhere outside, work is bounded, regular expressions are not checked.

The package that does it takes a tenth of a second to import, which happens with the first call.
"""

from __future__ import annotations

from appliance.plugins import JSON, JsonObject, Refused


def mistake_of_schema(schema: JsonObject) -> str | None:
    """Return the first mistake that makes this invalid as a JSON schema, with its place."""
    from appliance.core.bodies import schema_keywords

    try:
        mistake = schema_keywords.mistake_of_schema(schema)
    except RecursionError:
        return "it is nested too deep"
    return None if mistake is None else f"{mistake.json_path}: {mistake.message}"


def mistakes(value: JSON, schema: JsonObject) -> list[str]:
    """Return the first few mistakes in ``value``, each with its place. Raises Refused for an unusable schema."""
    from appliance.core.bodies.schema_keywords import Bounded, SchemaUnusable

    try:
        found = Bounded(schema).mistakes(value)
    except SchemaUnusable as error:
        raise Refused(f"the schema {error}") from None
    return [f"{mistake.json_path}: {mistake.message}" for mistake in found]
