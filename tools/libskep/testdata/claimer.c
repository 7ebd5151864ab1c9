/* An engine's scheduler in a process of its own, without libskep and without Go: it maps a page of shared memory,
 * claims by the word there, and "computes" by sleeping.
 *
 *   claimer FD OFFSET BLOCK-TOKENS TOKENS MICROSECONDS-A-BLOCK */
#define _GNU_SOURCE
#define SKEP_NO_PROTOTYPES
#include "board.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char **argv) {
	if (argc != 6)
		return 2;
	int64_t unit = atoll(argv[3]), tokens = atoll(argv[4]), per = atoll(argv[5]), pos = 0;
	board *b = mmap(NULL, BOARD_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, atoi(argv[1]), atoll(argv[2]));
	if (b == MAP_FAILED) {
		perror("mmap");
		return 1;
	}
	skep_word w = {&b->word, unit, tokens, 0};
	while (pos < tokens) {
		skep_claimed c;
		int64_t to = pos + 4 * unit;
		int answered = skep_word_claim(&w, pos, to < tokens ? to : tokens, 0, &c);
		b->asks++;
		if (!answered && __atomic_load_n(&b->over, __ATOMIC_SEQ_CST))
			break;
		if (c.from == c.to) {
			usleep(100);
		} else {
			for (int64_t i = c.from / unit; i < (c.to + unit - 1) / unit; i++)
				__atomic_add_fetch(&b->granted[i], 1, __ATOMIC_SEQ_CST);
			b->claims++;
			usleep((useconds_t)((c.to - c.from) / unit * per));
			__atomic_store_n(&b->computed, (uint64_t)c.to, __ATOMIC_SEQ_CST);
		}
		pos = c.jump;
	}
	return 0;
}
