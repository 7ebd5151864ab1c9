package wire_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/wire"
	"github.com/skepkv/skep/wire/server"
)

// A program that uses a store over the network. A Client is a skep.Store as the embedded one is: what follows
// Dial is the same for both.
func Example() {
	// In another process: skep serve --dir DIR. Here, a store in memory behind a port of the machine's choosing.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, l, memstore.New(memstore.Options{}), server.Options{}) }()

	if err := use(ctx, l.Addr().String()); err != nil {
		fmt.Println(err)
	}
	stop()
	if err := <-ended; err != nil {
		fmt.Println(err)
	}
	// Output:
	// put: committed
	// found 1 of 1
	// block 0: "computed once"
}

func use(ctx context.Context, addr string) (err error) {
	s, err := wire.Dial(ctx, wire.Options{Addr: addr}) // Token: "…" where the server asks for one
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()

	shape := skep.Shape{Kind: skep.Opaque, BlockTokens: 16}
	ns, err := s.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: "default", Name: "chat", Model: "llama@1", Shape: shape, Chained: true})
	if err != nil {
		return err
	}
	scope, key := skep.Scope{Namespace: ns.ID}, skep.ChainKey(nil, []uint32{1, 2, 3})

	put, err := s.Put(ctx, &skep.PutRequest{Scope: scope, Blocks: []skep.Block{{Key: key, Parts: []skep.Part{{Bytes: []byte("computed once")}}}}})
	if err != nil {
		return err
	}
	fmt.Println("put:", put[0]) // "declined: unavailable" where the server is gone: skep.Stored makes an error of it

	found, err := s.Lookup(ctx, &skep.LookupRequest{Scope: scope, Keys: []skep.Key{key}})
	if err != nil {
		return err
	}
	fmt.Printf("found %d of 1\n", found.Blocks)

	session, err := s.Restore(ctx, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: scope, Keys: []skep.Key{key}, Lease: found.Lease.ID}}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, session.Close(ctx)) }()
	chunks := make([]skep.Chunk, 8)
	for {
		n, err := session.Next(ctx, chunks)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for i := range chunks[:n] {
			if c := &chunks[i]; c.Err != nil {
				fmt.Printf("block %d is to be computed: %v\n", c.Block, c.Err)
			} else {
				fmt.Printf("block %d: %q\n", c.Block, c.Data[0])
			}
			chunks[i].Release()
		}
	}
}
