package hostile

import (
	"context"
	"math/rand/v2"
	"os"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire"
)

// childAddr is the variable by which a program is that client.
const childAddr = "SKEP_HOSTILE_CHILD"

// A program that has players in it is also the client that one of them kills.
func init() {
	if at := os.Getenv(childAddr); at != "" {
		child("unix:" + at)
		os.Exit(0)
	}
}

// child stores and restores through shared memory until it is killed, or its server ends.
func child(at string) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c, err := wire.Dial(ctx, wire.Options{Addr: at, Token: TokenHostile, SharedMemory: 8 << 20, Conns: 1})
	if err != nil {
		return
	}
	ns, err := c.OpenNamespace(ctx, skep.NamespaceSpec{Tenant: HostileTenant, Name: "killed", Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: 1}})
	if err != nil {
		return
	}
	mem, err := c.Alloc(ctx, 4<<20)
	if err != nil {
		return
	}
	keys := make([]skep.Key, 16)
	for ctx.Err() == nil {
		req := &skep.PutRequest{Scope: skep.Scope{Namespace: ns.ID}}
		for i := range keys {
			keys[i] = keyOf(rand.IntN(1000))
			req.Blocks = append(req.Blocks, skep.Block{Key: keys[i], Parts: []skep.Part{{Bytes: mem.Bytes()[i*64<<10:][:64<<10]}}})
		}
		_, _ = c.Put(ctx, req)
		_ = skep.Load(ctx, c, &skep.RestoreRequest{Chains: []skep.Chain{{Scope: req.Scope, Keys: keys, Dest: skep.Destination{Memory: mem.Bytes(), Stride: 64 << 10}}}}, nil)
	}
}
