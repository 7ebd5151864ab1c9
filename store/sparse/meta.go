package sparse

import (
	"context"
	"encoding/binary"
	"errors"

	"github.com/skepkv/skep"
)

// key names a block of this context, in either namespace.
func (k *sparseContext) key(what string, numbers ...uint64) skep.Key {
	b := append([]byte("skep sparse\x00"+what+"\x00"), k.place.last[:]...)
	for _, n := range numbers {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	return skep.KeyOf(b)
}

func (k *sparseContext) recordKey(layer int, gen uint64, device, block int) skep.Key {
	return k.key("records", uint64(layer), gen, uint64(device), uint64(block))
}

// putMeta stores one opaque block, in place of what had its key.
func (k *sparseContext) putMeta(ctx context.Context, key skep.Key, data []byte) error {
	return k.put(ctx, k.meta, []skep.Block{{Key: key, Parts: []skep.Part{{Bytes: data}}}})
}

func (k *sparseContext) put(ctx context.Context, sc skep.Scope, blocks []skep.Block) error {
	res, err := k.s.st.Put(ctx, &skep.PutRequest{Scope: sc, Blocks: blocks})
	if err, _ = skep.Held(err); err != nil { // their memory is nobody else's
		return err
	}
	for _, r := range res {
		if r.Outcome != skep.Committed {
			return &skep.Error{Op: "put context", Kind: r.Reason, Field: "outcome", Value: r.Outcome}
		}
	}
	return nil
}

// readTries is how often a read begins again whose block went while it was read.
const readTries = 3

// getMeta reads an opaque block; nil when there is none. It does not go by a Lookup: one that
// finds nothing does not say whether the block is stored and cannot be read now, and what cannot
// be read is not to be begun anew.
func (k *sparseContext) getMeta(ctx context.Context, key skep.Key) ([]byte, error) {
	return k.s.blockAt(ctx, skep.Chain{Scope: k.meta, Keys: []skep.Key{key}})
}

// blockAt reads the one block a chain asks for; nil only when none is stored.
func (s *Sparse) blockAt(ctx context.Context, c skep.Chain) (data []byte, err error) {
	for range readTries {
		data, err = s.readBlock(ctx, c)
		if !errors.Is(err, skep.Evicted) {
			break
		}
	}
	if errors.Is(err, skep.NotFound) {
		return nil, nil
	}
	return data, err
}

func (s *Sparse) readBlock(ctx context.Context, c skep.Chain) (data []byte, err error) {
	err = skep.Load(ctx, s.st, &skep.RestoreRequest{Chains: []skep.Chain{c}}, func(c *skep.Chunk) error {
		if c.Err != nil {
			return c.Err
		}
		data = c.AppendTo(make([]byte, 0, c.Bytes))
		return nil
	})
	return data, err
}
