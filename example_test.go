package skep_test

import (
	"bytes"
	"context"
	"fmt"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
)

// An engine's whole use of a Store, whichever it is: look a prompt up, load what is stored, put what was computed, and
// have it back after the engine's own copy is gone.
func Example() {
	st := memstore.New(memstore.Options{}) // store.Open on drives, wire.Dial to a server, gpu.New in front of either
	defer st.Close()
	if err := use(context.Background(), st); err != nil {
		fmt.Println(err)
	}
	// Output:
	// 0 of 3 blocks are stored, 3 are computed
	// 3 of 3 blocks are stored: 48 tokens
	// 3 blocks loaded, the same bytes: true
}

func use(ctx context.Context, st skep.Store) error {
	// A namespace is one model's blocks of one shape: here 2 layers, 8 KV heads of 64 dimensions in bf16, 16 tokens a block.
	shape := skep.Shape{Kind: skep.Attention, Layers: 2, KVHeads: 8, HeadDim: 64, Element: skep.BF16, BlockTokens: 16}
	spec := skep.NamespaceSpec{Tenant: "default", Name: "chat", Model: "llama@1", Shape: shape, Chained: true}
	ns, err := skep.OpenNamespace(ctx, st, spec)
	if err != nil {
		return err
	}

	// A prompt of three blocks. Each block's key depends on all tokens up to its end.
	var chain []skep.Key
	var parent *skep.Key
	for i := range 3 {
		key := skep.ChainKey(parent, []uint32{uint32(i)})
		chain, parent = append(chain, key), &key
	}

	// Nothing is stored yet: compute the blocks and put them.
	found, err := ns.Lookup(ctx, chain)
	if err != nil {
		return err
	}
	computed := compute(chain[found.Blocks:])
	fmt.Printf("%d of %d blocks are stored, %d are computed\n", found.Blocks, len(chain), len(computed))
	if _, err := ns.Put(ctx, chain, found.Blocks, computed...); err != nil { // or declined
		return err
	}

	// Forget them. The prompt comes again, and memory of its own is what its blocks are loaded into.
	want := bytes.Join(computed, nil)
	for _, block := range computed {
		clear(block)
	}
	if found, err = ns.Lookup(ctx, chain); err != nil {
		return err
	}
	fmt.Printf("%d of %d blocks are stored: %d tokens\n", found.Blocks, len(chain), found.Tokens)
	kv := make([]byte, len(want))
	dest := skep.Destination{Memory: kv, Stride: blockBytes}
	loaded, err := ns.Load(ctx, skep.Chain{Keys: chain[:found.Blocks], Lease: found.Lease.ID, Dest: dest}, nil)
	if err != nil {
		return err
	}
	fmt.Printf("%d blocks loaded, the same bytes: %v\n", loaded, bytes.Equal(want, kv))
	return ns.Release(ctx, found.Lease.ID)
}

const blockBytes = 2 * 2 * 8 * 16 * 64 * 2 // layers, K and V, heads, tokens, dimensions, bytes of bf16

// compute stands for a model: each byte it makes depends on the block's key.
func compute(keys []skep.Key) [][]byte {
	blocks := make([][]byte, len(keys))
	for i, key := range keys {
		blocks[i] = bytes.Repeat(key[:], blockBytes/len(key))
	}
	return blocks
}
