package reclaim

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu"
	"github.com/skepkv/skep/gpu/loan"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/tools/internal/payload"
)

const (
	blockBytes  = 256 << 10
	chainBlocks = (units - 1) * perUnit
)

// shape has blocks of blockBytes.
var shape = skep.Shape{Kind: skep.Attention, Layers: 8, KVHeads: 4, HeadDim: 128, Element: skep.BF16, BlockTokens: 16}

// borrower is a Store with lent GPU memory in front of memory, and a chain in it.
type borrower struct {
	store *gpu.Store
	own   gpu.Device
	lent  gpu.Sharer
	scope skep.Scope
	keys  []skep.Key
	mem   []byte
}

func newBorrower(open Open) (*borrower, error) {
	b := &borrower{mem: make([]byte, chainBlocks*blockBytes)}
	var err error
	if b.own, err = open(0); err != nil {
		return nil, err
	}
	d, err := open(1)
	if err != nil {
		return nil, err
	}
	var ok bool
	if b.lent, ok = d.(gpu.Sharer); !ok {
		return nil, &skep.Error{Op: op, Kind: skep.Unsupported, Field: "GPU", Value: d.Name(), Limit: "one whose memory other processes can map"}
	}
	if b.store, err = gpu.New(memstore.New(memstore.Options{}), gpu.Options{Device: b.own, BlockBytes: blockBytes, Timeout: patience, PinnedBytes: 4 << 20}); err != nil {
		return nil, err
	}
	ns, err := b.store.OpenNamespace(context.Background(), skep.NamespaceSpec{Tenant: "t", Name: "n", Model: "m", Shape: shape, Copies: 1, Chained: true})
	if err != nil {
		return nil, err
	}
	r := &skep.PutRequest{Scope: skep.Scope{Namespace: ns.ID}}
	b.scope = r.Scope
	for i := range chainBlocks {
		key := skep.KeyOf(fmt.Appendf(nil, "block %d", i))
		bytes := make([]byte, blockBytes)
		payload.Fill(bytes, key)
		b.keys = append(b.keys, key)
		r.Blocks = append(r.Blocks, skep.Block{Key: key, Parts: []skep.Part{{Bytes: bytes}}})
	}
	_, err = b.store.Put(context.Background(), r)
	return b, err
}

func (b *borrower) borrow(socket string) (*loan.Loan, error) {
	return loan.Borrow(loan.BorrowerOptions{Socket: socket, Name: op, Device: b.lent, Tier: b.store})
}

func (b *borrower) close() error { return errors.Join(b.store.Close(), b.own.Close(), b.lent.Close()) }

// restore restores the chain, and says how many blocks came out of GPU memory and how many came
// wrong.
func (b *borrower) restore() (hits int, wrong int64, err error) {
	ctx := context.Background()
	r := &skep.RestoreRequest{Chains: []skep.Chain{{Scope: b.scope, Keys: b.keys, Dest: skep.Destination{Memory: b.mem}}}}
	err = skep.Load(ctx, b.store, r, func(c *skep.Chunk) error {
		if c.Err != nil {
			return c.Err
		}
		if c.Tier == skep.TierGPU {
			hits++
		}
		if payload.Check(b.mem[c.Block*blockBytes:][:blockBytes], b.keys[c.Block]) > 0 {
			wrong++
		}
		return nil
	})
	return hits, wrong, err
}

// runBorrower is the role of a borrower: it restores until its input ends, and says of each restore
// what came of it.
func runBorrower(socket string, open Open, in io.Reader, out io.Writer) error {
	b, err := newBorrower(open)
	if err != nil {
		return err
	}
	l, err := b.borrow(socket)
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, in)
	}()
	for {
		hits, wrong, err := b.restore()
		if err == nil {
			_, err = fmt.Fprintf(out, "hits %d wrong %d\n", hits, wrong)
		}
		if err != nil {
			return err
		}
		select {
		case <-ended:
			return errors.Join(l.Close(), b.close())
		default:
		}
	}
}

// runLender is the role of a lender: it lends all it has, says so, and waits to be killed.
func runLender(ctx context.Context, socket string, open Open, in io.Reader, out io.Writer) error {
	d, err := open(1)
	if err != nil {
		return err
	}
	s, ok := d.(gpu.Sharer)
	if !ok {
		return &skep.Error{Op: op, Kind: skep.Unsupported, Field: "GPU", Value: d.Name(), Limit: "one whose memory other processes can map"}
	}
	l, err := loan.Lend(loan.LenderOptions{Socket: socket, Name: op, Device: s, Unit: unit, Units: units, Floor: 1, Lease: patience, Reclaim: patience})
	if err != nil {
		return err
	}
	err = l.Move(ctx, 1)
	if err == nil {
		_, err = fmt.Fprintln(out, "lends")
	}
	if err == nil {
		_, err = io.Copy(io.Discard, in)
	}
	return errors.Join(err, l.Close(), d.Close())
}

// Run is a child of Measure's.
func Run(ctx context.Context, role, socket string, open Open, in io.Reader, out io.Writer) error {
	if role == Lender {
		return runLender(ctx, socket, open, in, out)
	}
	return runBorrower(socket, open, in, out)
}
