//go:build cgo

package main

/*
#define SKEP_NO_PROTOTYPES
#define SKEP_NO_WORD
#include "skep.h"
*/
import "C"

import (
	"context"
	"fmt"
	"unsafe"

	"github.com/skepkv/skep"
)

// placed is memory of the caller's for the blocks of an operation's keys, each in one piece or in several. Leading ones
// of a load may have none, and do not count.
func placed(c *C.skep_op, load bool) ([]place, error) {
	at := (*unsafe.Pointer)(unsafe.Pointer(c.blocks))
	if c.pieces == nil {
		of := blocksOf
		if load {
			of = placesOf
		}
		list, err := of(at, c.lengths, c.n)
		return inOne(list), err
	}
	counts, all, lead := unsafe.Slice((*uint32)(c.pieces), int(c.n)), int64(0), 0
	for load && lead < len(counts) && counts[lead] == 0 {
		lead++
	}
	if n := len(counts) - lead; n > skep.MaxPutBlocks || at == nil || c.lengths == nil {
		return nil, skep.Invalidf(op, "blocks", n, fmt.Sprintf("at most %d, and addresses and lengths", skep.MaxPutBlocks))
	}
	for _, k := range counts[lead:] {
		all += int64(k)
	}
	if all < 1 || all > maxPieces {
		return nil, skep.Invalidf(op, "pieces of blocks", all, fmt.Sprintf("1 to %d", maxPieces))
	}
	addresses, lengths := unsafe.Slice(at, all), unsafe.Slice(c.lengths, all)
	out := make([]place, c.n)
	for i := lead; i < len(counts); i++ {
		k := counts[i]
		if k == 0 {
			return nil, skep.Invalidf(op, fmt.Sprintf("pieces of block %d", i), 0, "1 or more")
		}
		size := int64(0)
		for j := range k {
			p, n := addresses[j], int64(lengths[j])
			if n < 1 || n > skep.MaxPartBytes-size || p == nil {
				return nil, skep.Invalidf(op, fmt.Sprintf("bytes of piece %d of block %d", j, i), n,
					fmt.Sprintf("1 to %d, and an address", skep.MaxPartBytes-size))
			}
			size += n
			out[i] = out[i].add(unsafe.Slice((*byte)(p), n))
		}
		addresses, lengths = addresses[k:], lengths[k:]
	}
	return out, nil
}

// beginning has x begin a block of parts.
func (o *opened) beginning(c *C.skep_op, x *operation, scope skep.Scope) error {
	keys, err := keysOf(c.keys, 1)
	if err != nil {
		return err
	}
	r, err := beginOf(scope, c.parent, c.depth, keys[0], c.parts, c.n, c.lease_ms)
	if err != nil {
		return err
	}
	x.do = func(ctx context.Context, done *completion) error {
		id, err := o.beginWriting(ctx, r)
		done.lease = skep.LeaseID(id)
		return err
	}
	return nil
}

// writingOn has x go on with a block of parts, or end it.
func (o *opened) writingOn(c *C.skep_op, x *operation) error {
	number := c.writer
	w, err := writerOf(number)
	if err != nil {
		return err
	}
	if w.of != o {
		return skep.Invalidf(op, "writer", uint64(number), "one of the queue's store")
	}
	switch c.what {
	case C.SKEP_OP_WRITE:
		if c.n != 1 || c.pieces != nil {
			return skep.Invalidf(op, "places of a write", int(c.n), "1, and no pieces")
		}
		from, err := blocksOf((*unsafe.Pointer)(unsafe.Pointer(c.blocks)), c.lengths, 1)
		if err != nil {
			return err
		}
		part, offset := "", int64(c.offset)
		if c.part != nil {
			part = C.GoString(c.part)
		}
		if err := named(part); err != nil {
			return err
		}
		x.do = func(ctx context.Context, _ *completion) error { return w.w.Write(ctx, part, offset, from[0]) }
	case C.SKEP_OP_ABORT:
		// The writer goes on where this is not taken.
		x.do = func(ctx context.Context, _ *completion) error { return abort(ctx, uint64(number)) }
	default:
		ack := skep.AckCommitted
		if c.what == C.SKEP_OP_COMMIT_ACCEPTED {
			ack = skep.AckAccepted
		}
		said, why := make([]byte, 1), make([]byte, 1)
		x.tell = tellTo(c.results, c.reasons, said, why)
		x.do = func(ctx context.Context, done *completion) error {
			res, _, err := w.commit(ctx, number, ack)
			if said[0], why[0] = byte(res.Outcome), byte(res.Reason); err == nil && res.Outcome != skep.Declined {
				done.blocks = 1
			}
			return err
		}
	}
	return nil
}
