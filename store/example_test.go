package store_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
)

// A serving engine's whole use of the store: look a prompt up, restore what is there,
// put what was computed.
func Example() {
	dir, err := os.MkdirTemp("", "skep-example-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	if err := serve(context.Background(), dir); err != nil {
		fmt.Println(err)
	}
	// Output:
	// first time: 0 of 3 blocks found
	// second time: 3 of 3 blocks found, 48 tokens
	// restored 3 blocks, 196608 bytes, missed 0
}

func serve(ctx context.Context, dir string) error {
	s, err := store.Open(ctx, store.Options{Dir: dir, CapacityBytes: 64 << 20, BlockBytes: 64 << 10})
	if err != nil {
		return err
	}
	defer s.Close()

	// A namespace is one model's blocks of one shape: here 2 layers, 8 KV heads of 64
	// dimensions in bf16, 16 tokens a block.
	shape := skep.Shape{Kind: skep.Attention, Layers: 2, KVHeads: 8, HeadDim: 64, Element: skep.BF16, BlockTokens: 16}
	ns, err := s.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "acme", Name: "chat", Model: "llama@1", Shape: shape, Chained: true})
	if err != nil {
		return err
	}
	scope := skep.Scope{Namespace: ns.ID}

	// A prompt of three blocks. Each block's key depends on all tokens before it.
	var chain []skep.Key
	var parent *skep.Key
	for i := range 3 {
		key := skep.ChainKey(parent, []uint32{uint32(i)})
		chain, parent = append(chain, key), &key
	}

	found, err := s.Lookup(ctx, &skep.LookupRequest{Scope: scope, Keys: chain})
	if err != nil {
		return err
	}
	fmt.Printf("first time: %d of %d blocks found\n", found.Blocks, len(chain))

	// Compute what is missing, and put it. Memory from Alloc is written without a copy.
	const blockBytes = 2 * 2 * 8 * 16 * 64 * 2
	kv, err := s.Alloc(ctx, int64(len(chain))*blockBytes)
	if err != nil {
		return err
	}
	defer kv.Release()
	put := skep.PutRequest{Scope: scope}
	for i, key := range chain {
		bytes := kv.Bytes()[i*blockBytes:][:blockBytes]
		put.Blocks = append(put.Blocks, skep.Block{Key: key, Parts: []skep.Part{{Bytes: bytes}}})
	}
	results, err := s.Put(ctx, &put)
	if err != nil {
		return err
	}
	if err := skep.Stored(results); err != nil { // a block may be declined: it is a miss next time, and no more
		fmt.Println(err)
	}

	found, err = s.Lookup(ctx, &skep.LookupRequest{Scope: scope, Keys: chain})
	if err != nil {
		return err
	}
	fmt.Printf("second time: %d of %d blocks found, %d tokens\n", found.Blocks, len(chain), found.Tokens)

	// Load it under the lease the lookup gave. Next delivers blocks as they land.
	session, err := s.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{{
		Scope: scope, Keys: chain, Lease: found.Lease.ID,
		Dest: skep.Destination{Memory: kv.Bytes(), Stride: blockBytes},
	}}})
	if err != nil {
		return err
	}
	defer session.Close(ctx)
	var blocks, missed int
	var bytes int64
	for chunks := make([]skep.Chunk, 16); ; {
		n, err := session.Next(ctx, chunks)
		for _, c := range chunks[:n] {
			if c.Err != nil { // a miss, with its reason: compute this block instead
				missed++
				continue
			}
			blocks++
			bytes += c.Bytes
		}
		if errors.Is(err, io.EOF) {
			break // everything delivered, and no drive writes to our memory any more
		}
		if err != nil {
			return err
		}
	}
	fmt.Printf("restored %d blocks, %d bytes, missed %d\n", blocks, bytes, missed)
	return s.Release(ctx, found.Lease.ID)
}
