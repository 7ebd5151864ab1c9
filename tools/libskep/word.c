#include "skep.h"

int skep_word_claim_call(uint64_t *word, uint64_t *last, int64_t block_tokens, int64_t tokens, int64_t from, int64_t to, int idle, skep_claimed *out) {
	skep_word b = {word, block_tokens, tokens, *last};
	int answered = skep_word_claim(&b, from, to, idle, out);
	*last = b.last;
	return answered;
}
