package replay

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/tools/internal/payload"
	"github.com/skepkv/skep/tools/internal/trace"
)

// Source yields requests in order of time and io.EOF after the last: a trace.Reader
// or a workload.Generator.
type Source interface {
	Next() (trace.Request, error)
}

// Tenant is who puts what a trace asks for.
const Tenant = "replay"

// Options of Run.
type Options struct {
	BlockBytes int64   // payload of every block
	Speed      float64 // 1 keeps the trace's times, 10 is ten times faster; 0: one request after the other
	// RegionBytes is the memory that restores land in, and as much again that puts
	// read from; 64 MiB by default, never less than a block.
	RegionBytes int64
	Lease       time.Duration // 1 min by default
	CallTimeout time.Duration // bound on every call on the store; 2 min by default
	// Clock is told the trace's time before each request; nil: nobody. A store opened
	// with that clock sees the trace's days, however fast it is replayed.
	Clock func(at time.Duration)
	// Done is told of every request when it is over; nil: nobody.
	Done func(Step)
}

// Step is one request that is over.
type Step struct {
	Request     int // counted from 1
	Blocks, Hit int
	At          time.Duration // since the start of the run
	Lookup      time.Duration
	Restore     time.Duration // 0 when nothing was found
	Sum         *Result       // so far; rates and percentiles are not filled in
}

// DefaultRegionBytes is the largest piece of memory every store lends.
const DefaultRegionBytes = 64 << 20

func (o *Options) ensureDefaults() {
	if o.RegionBytes == 0 {
		o.RegionBytes = DefaultRegionBytes
	}
	o.RegionBytes = max(o.RegionBytes, stride(o.BlockBytes))
	if o.Lease == 0 {
		o.Lease = time.Minute
	}
	if o.CallTimeout == 0 {
		o.CallTimeout = 2 * time.Minute
	}
}

func (o *Options) validate() error {
	const op = "replay"
	if o.BlockBytes < 1 || o.BlockBytes > skep.MaxPartBytes {
		return skep.Invalidf(op, "block bytes", o.BlockBytes, fmt.Sprintf("1 to %d", int64(skep.MaxPartBytes)))
	}
	if o.Speed < 0 {
		return skep.Invalidf(op, "speed", o.Speed, "0 or more")
	}
	return nil
}

// stride is what a block takes in memory.
func stride(n int64) int64 { return (n + device.Align - 1) &^ (device.Align - 1) }

// Run replays src on st and returns what was done, also when it returns an error.
// st's namespaces "replay …" of tenant "replay" are its own.
func Run(ctx context.Context, st skep.Store, src Source, o Options) (*Result, error) {
	res := &Result{Misses: map[string]int64{}, Declined: map[string]int64{}}
	o.ensureDefaults()
	if err := o.validate(); err != nil {
		return res, err
	}
	r := &runner{st: st, opt: o, res: res, stride: stride(o.BlockBytes), spaces: map[int]skep.NamespaceID{}}
	r.perPiece = int(max(1, o.RegionBytes/r.stride))
	defer r.release()
	if err := r.alloc(ctx); err != nil {
		return res, err
	}
	before, err := st.Stats(ctx)
	if err != nil {
		return res, err
	}
	r.start = time.Now()
	err = r.loop(ctx, src)
	// What was put counts when it is stored; the flush is no put's time.
	call, cancel := r.call()
	defer cancel()
	err = errors.Join(err, st.Flush(call))
	after, statErr := st.Stats(call)
	res.finish(&before, &after, time.Since(r.start).Seconds())
	return res, errors.Join(err, statErr)
}

type runner struct {
	st       skep.Store
	opt      Options
	res      *Result
	start    time.Time
	stride   int64
	perPiece int
	spaces   map[int]skep.NamespaceID // by tokens a block

	in, out []byte // restores land in one, puts read from the other
	lent    []skep.Memory

	keys   []skep.Key
	landed []int                                   // blocks of the present piece
	took   struct{ lookup, restore time.Duration } // of the present request
	blocks []skep.Block
	parts  []skep.Part
}

// call bounds one call on the store. It does not end with the caller's context: a
// put that is under way is finished, so that what it did is known.
func (r *runner) call() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), r.opt.CallTimeout)
}

// alloc borrows both regions from the store, so that drives know the memory, or makes
// them here when the store lends no pieces of that size.
func (r *runner) alloc(ctx context.Context) error {
	r.res.RegisteredBuffers = true
	for _, region := range []*[]byte{&r.in, &r.out} {
		n := int64(r.perPiece) * r.stride
		wait, cancel := context.WithTimeout(ctx, 2*time.Second)
		m, err := r.st.Alloc(wait, n)
		cancel()
		switch {
		case err == nil:
			r.lent = append(r.lent, m)
			*region = m.Bytes()
		case ctx.Err() != nil:
			return err
		default:
			r.res.RegisteredBuffers = false
			*region = device.AlignedBuffer(int(n))
		}
	}
	return nil
}

func (r *runner) release() {
	for _, m := range r.lent {
		m.Release()
	}
}

func (r *runner) loop(ctx context.Context, src Source) error {
	for {
		req, err := src.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := r.pace(ctx, req.Time); err != nil || ctx.Err() != nil {
			r.res.Interrupted = true
			return nil
		}
		if r.opt.Clock != nil {
			r.opt.Clock(req.Time)
		}
		hit, err := r.request(ctx, &req)
		if err != nil {
			return fmt.Errorf("request %d: %w", r.res.Requests+1, err)
		}
		r.res.Requests++
		if r.opt.Done != nil {
			r.opt.Done(Step{r.res.Requests, len(req.Blocks), hit, time.Since(r.start), r.took.lookup, r.took.restore, r.res})
		}
	}
}

// pace waits until the request is due.
func (r *runner) pace(ctx context.Context, at time.Duration) error {
	if r.opt.Speed == 0 {
		return nil
	}
	wait := time.Duration(float64(at)/r.opt.Speed) - time.Since(r.start)
	if wait <= 0 {
		return nil
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	defer since(&r.res.PaceSeconds, time.Now())
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// since adds the time from start to sum.
func since(sum *float64, start time.Time) { *sum += time.Since(start).Seconds() }

func (r *runner) namespace(tokens int) (skep.NamespaceID, error) {
	if id, ok := r.spaces[tokens]; ok {
		return id, nil
	}
	ctx, cancel := r.call()
	defer cancel()
	info, err := r.st.OpenNamespace(ctx, skep.NamespaceSpec{
		Tenant: Tenant, Name: fmt.Sprintf("replay %d tokens %d bytes", tokens, r.opt.BlockBytes), Model: "payload-1",
		Shape: skep.Shape{Kind: skep.Opaque, BlockTokens: tokens, Bytes: r.opt.BlockBytes}, Class: skep.Cache, Chained: true,
	})
	if err != nil {
		return 0, err
	}
	r.spaces[tokens] = info.ID
	return info.ID, nil
}

// Key is the key of a trace's block: ids name prefixes within one model.
func Key(model string, id uint64) skep.Key {
	b := append(make([]byte, 0, 64), "skep replay\x00"...)
	b = append(b, model...)
	b = append(b, 0)
	return skep.KeyOf(binary.LittleEndian.AppendUint64(b, id))
}

func (r *runner) request(ctx context.Context, req *trace.Request) (hit int, err error) {
	ns, err := r.namespace(req.BlockTokens)
	if err != nil {
		return 0, err
	}
	scope := skep.Scope{Namespace: ns}
	start := time.Now()
	r.keys = r.keys[:0]
	for _, id := range req.Blocks {
		r.keys = append(r.keys, Key(req.Model, id))
	}
	since(&r.res.GenerateSeconds, start)
	r.res.BlocksReferenced += int64(len(r.keys))
	if len(r.keys) == 0 {
		return 0, nil
	}
	found, err := r.lookup(scope)
	if err != nil {
		return 0, err
	}
	r.res.BlocksFound += int64(found.Blocks)
	if found.LeaseDenied {
		r.res.LeasesDenied++
	}
	if found.Lease.ID != 0 {
		defer func() {
			call, cancel := r.call()
			defer cancel()
			err = errors.Join(err, r.st.Release(call, found.Lease.ID))
		}()
	}
	if found.Blocks > 0 {
		if hit, err = r.restore(ctx, scope, found); err != nil {
			return hit, err
		}
	}
	r.res.BlocksHit += int64(hit)
	if ctx.Err() != nil {
		return hit, nil
	}
	return hit, r.put(ctx, scope, hit, req.LastValidTokens)
}

func (r *runner) lookup(scope skep.Scope) (skep.LookupResult, error) {
	ctx, cancel := r.call()
	defer cancel()
	start := time.Now()
	found, err := r.st.Lookup(ctx, &skep.LookupRequest{Scope: scope, Keys: r.keys, Lease: r.opt.Lease})
	took := time.Since(start)
	r.took.lookup, r.took.restore = took, 0
	r.res.LookupSeconds += took.Seconds()
	r.res.Lookups.Record(took)
	return found, err
}

// restore loads and checks the found blocks and says how many leading ones are right.
func (r *runner) restore(ctx context.Context, scope skep.Scope, found skep.LookupResult) (right int, err error) {
	var took time.Duration
	renewed := time.Now()
	for from := 0; from < found.Blocks && ctx.Err() == nil; from += r.perPiece {
		to := min(from+r.perPiece, found.Blocks)
		if found.Lease.ID != 0 && time.Since(renewed) > r.opt.Lease/3 {
			call, cancel := r.call()
			_, err := r.st.Renew(call, found.Lease.ID, r.opt.Lease)
			cancel()
			if err != nil {
				return right, err
			}
			renewed = time.Now()
		}
		start := time.Now()
		err := r.load(scope, found.Lease.ID, skep.Range{From: from, To: to})
		took += time.Since(start)
		since(&r.res.RestoreSeconds, start)
		if err != nil {
			return right, err
		}
		if n := r.verify(from, to); right == from {
			right += n
		}
	}
	r.res.Restores.Record(took)
	r.took.restore = took
	return right, nil
}

// load restores one piece into r.in and notes in r.landed which blocks came.
func (r *runner) load(scope skep.Scope, lease skep.LeaseID, piece skep.Range) (err error) {
	ctx, cancel := r.call()
	defer cancel()
	r.landed = r.landed[:0]
	return skep.Load(ctx, r.st, &skep.RestoreRequest{Chains: []skep.Chain{{
		Scope: scope, Keys: r.keys[:piece.To], Blocks: piece.Subset(), Lease: lease,
		Dest: skep.Destination{Memory: r.in[:int64(piece.Len())*r.stride], Stride: r.stride},
	}}}, func(c *skep.Chunk) error {
		if c.Err == nil {
			r.landed = append(r.landed, c.Block)
			r.res.BytesRestored += c.Bytes
			return nil
		}
		r.res.Misses[skep.KindOf(c.Err).Error()]++
		if lease != 0 {
			r.res.BrokenPromises++
		}
		return nil
	})
}

// verify compares what landed and says how many leading blocks of the piece are right.
func (r *runner) verify(from, to int) (right int) {
	defer since(&r.res.VerifySeconds, time.Now())
	good := make([]bool, to-from)
	for _, block := range r.landed {
		i := block - from
		at := int64(i) * r.stride
		wrong := payload.Check(r.in[at:at+r.opt.BlockBytes], r.keys[block])
		r.res.WrongBytes += wrong
		good[i] = wrong == 0
	}
	for right < len(good) && good[right] {
		right++
	}
	return right
}

// afterDeclined counts blocks that were not put because one before them was declined:
// nobody would ever find them.
const afterDeclined = "after a declined block"

// put stores the request's blocks from position from on.
func (r *runner) put(ctx context.Context, scope skep.Scope, from, lastValid int) error {
	for n := len(r.keys); from < n && ctx.Err() == nil; {
		to := min(from+r.perPiece, n)
		stored, err := r.putPiece(scope, from, to, lastValid)
		if err != nil {
			return err
		}
		if !stored {
			r.decline(afterDeclined, n-to)
			return nil
		}
		from = to
	}
	return nil
}

func (r *runner) decline(reason string, n int) {
	if n > 0 {
		r.res.Declined[reason] += int64(n)
	}
}

// putPiece puts blocks [from, to) and says whether all are stored now.
func (r *runner) putPiece(scope skep.Scope, from, to, lastValid int) (bool, error) {
	r.generate(from, to)
	req := &skep.PutRequest{Scope: scope, Depth: from, Blocks: r.blocks}
	if from > 0 {
		req.Parent = &r.keys[from-1]
	}
	if lastValid > 0 && to == len(r.keys) {
		r.blocks[len(r.blocks)-1].ValidTokens = lastValid
	}
	ctx, cancel := r.call()
	defer cancel()
	start := time.Now()
	results, err := r.st.Put(ctx, req)
	since(&r.res.PutSeconds, start)
	switch kind := skep.KindOf(err); {
	case err == nil:
	case errors.Is(err, skep.Invalid), errors.Is(err, skep.Conflict):
		// A trace may use an id at two depths; the store keeps the first.
		r.decline(kind.Error(), to-from)
		return false, nil
	default:
		return false, err
	}
	stored := true
	for _, p := range results {
		switch p.Outcome {
		case skep.Committed, skep.Accepted:
			r.res.BytesPut += r.opt.BlockBytes
		case skep.Exists:
			r.res.PutExists++
			if p.Differs {
				r.res.PutDiffers++
			}
		default:
			r.decline(p.Reason.Error(), 1)
			stored = false
		}
	}
	return stored, nil
}

// generate fills r.out and r.blocks with blocks [from, to).
func (r *runner) generate(from, to int) {
	defer since(&r.res.GenerateSeconds, time.Now())
	n := to - from
	if cap(r.parts) < n {
		r.parts, r.blocks = make([]skep.Part, r.perPiece), make([]skep.Block, r.perPiece)
	}
	r.blocks = r.blocks[:n]
	for i := range n {
		at := int64(i) * r.stride
		b := r.out[at : at+r.opt.BlockBytes]
		payload.Fill(b, r.keys[from+i])
		r.parts[i] = skep.Part{Bytes: b}
		r.blocks[i] = skep.Block{Key: r.keys[from+i], Parts: r.parts[i : i+1 : i+1]}
	}
}
