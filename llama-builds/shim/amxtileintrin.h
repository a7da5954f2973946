// Older GCCs (12.2 is one) tell the optimizer that _tile_loadconfig reads 8 bytes of the configuration. It reads 64: the
// sizes of the tiles, stored behind the first 8, count as never read and are dropped, and the first instruction on a
// tile is illegal (GCC's bug 114098). The barrier says that all of it is read.
#include_next <amxtileintrin.h>
#ifndef _tile_loadconfig
#define _tile_loadconfig(config)                              \
    __extension__({                                           \
        const void * shim_tiles_ = (config);                  \
        __asm__ volatile("" : : "r"(shim_tiles_) : "memory"); \
        (_tile_loadconfig)(shim_tiles_);                      \
    })
#endif
