/* What an engine's process and its scheduler's share: a page with the claim word, and what was claimed by it. */
#ifndef BOARD_H
#define BOARD_H
#include "skep.h"

enum { BOARD_BYTES = 4096, MOST_BLOCKS = 2048 };

typedef struct {
	uint64_t word;
	uint64_t computed;             /* tokens, from the head up */
	uint64_t over;                 /* says who began the restore: all is answered */
	uint64_t claims, asks;         /* answered with tokens, and in all */
	uint8_t granted[MOST_BLOCKS];  /* how often each block was */
} board;
#endif
