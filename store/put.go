package store

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/appender"
	"github.com/skepkv/skep/store/internal/commit"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/observe"
	"github.com/skepkv/skep/store/internal/puts"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/memory"
	"github.com/skepkv/skep/store/segment"
)

// incoming is one block on its way in.
type incoming struct {
	appender.Block
	held   []held           // its parts in the DRAM tier
	shared []*memory.Buffer // references to them, while it is written from there
	flight *puts.Flight
}

// toWrite is what is to be written of blocks.
func toWrite(list []*incoming) []*appender.Block {
	out := make([]*appender.Block, len(list))
	for i, in := range list {
		out[i] = &in.Block
	}
	return out
}

// Put implements skep.Putter.
func (s *Store) Put(ctx context.Context, r *skep.PutRequest) (results []skep.PutResult, err error) {
	sp := observe.BeginSpan(ctx, "store put")
	if sp.Span != nil {
		var bytes int64
		for i := range r.Blocks {
			for j := range r.Blocks[i].Parts {
				bytes += int64(len(r.Blocks[i].Parts[j].Bytes))
			}
		}
		defer func() { sp.Over(len(r.Blocks), len(results), bytes, err) }()
	}
	if err := s.enterWrite(ctx, "put"); err != nil {
		return nil, err
	}
	defer s.leave()
	ns, t, err := s.names.Resolve("put", r.Scope)
	if err != nil {
		return nil, err
	}
	state, err := s.beginCall("put", ns.Tenant, putState(len(r.Blocks)))
	if err != nil {
		return nil, err
	}
	defer s.calls.Leave(ns.Tenant, state)
	results = make([]skep.PutResult, len(r.Blocks))
	blocks, err := s.prepare(ns, t, r, results)
	if err != nil {
		return nil, err
	}
	l := appender.Lend(r.Released)
	for _, in := range blocks {
		if r.Exposed {
			in.Given = in.Parts
		} else {
			in.Loan = l
		}
	}
	return answerPut(l, results, s.putAs(ctx, ns, blocks, r.Ack))
}

// putAs stores blocks and returns when ack is reached, and what they replace cannot come back.
func (s *Store) putAs(ctx context.Context, ns *namespaces.Namespace, blocks []*incoming, ack skep.Ack) error {
	put := s.putCommitted
	if ack == skep.AckAccepted {
		put = s.accept
	}
	if err := put(ctx, ns, blocks); err != nil {
		return err
	}
	pending := false
	for _, in := range blocks {
		if in.DropPending && in.Durable() {
			pending = true
			if err := s.puts.Flights.Wait(ctx, *in.Replaces); err != nil { // it takes its row back
				return err
			}
		}
	}
	if pending {
		return s.rows.Settle(ctx)
	}
	return nil
}

// answerPut is the answer of a put whose parts lie in l's memory: NotReleased where that is not
// back, with the results where there are some.
func answerPut(l *appender.Loan, results []skep.PutResult, err error) ([]skep.PutResult, error) {
	if err != nil {
		results = nil
	}
	if l.Settle() {
		return results, err
	}
	return results, &skep.Error{Op: "put", Kind: skep.NotReleased, Field: "memory of the parts", Value: "a drive's", Limit: "PutRequest.Released says when it is not", Err: err}
}

// prepare checks every block before anything is stored, so that bad input changes
// nothing.
func (s *Store) prepare(ns *namespaces.Namespace, t namespaces.Tag, r *skep.PutRequest, results []skep.PutResult) ([]*incoming, error) {
	const op = "put"
	if len(r.Blocks) > skep.MaxPutBlocks {
		return nil, skep.Invalidf(op, "blocks", len(r.Blocks), fmt.Sprintf("at most %d", skep.MaxPutBlocks))
	}
	if r.Ack != skep.AckCommitted && r.Ack != skep.AckAccepted {
		return nil, skep.Invalidf(op, "ack", r.Ack, "committed or accepted")
	}
	spec := &ns.Info.NamespaceSpec
	list := make([]incoming, len(r.Blocks))
	out := make([]*incoming, len(r.Blocks))
	parent, depth := r.Parent, r.Depth
	for i := range r.Blocks {
		b, in := &r.Blocks[i], &list[i]
		out[i] = in
		m := make(skep.Manifest, len(b.Parts))
		for j, p := range b.Parts {
			if p.Name == "" {
				p.Name = skep.PartKV
			}
			m[j] = skep.PartSpec{Name: p.Name, Size: int64(len(p.Bytes))}
		}
		if err := s.describe(op, ns, spec, t, in, parent, depth, b.Key, b.Name, b.ValidTokens, b.Replaces, m); err != nil {
			return nil, err
		}
		in.Parts = b.Parts
		in.Result = &results[i]
		if spec.Chained {
			key := b.Key
			parent, depth = &key, depth+1
		}
	}
	if spec.Chained && r.Parent != nil {
		e, ok := s.index.Resolve(out0(out).Parent)
		if len(out) > 0 && ok && int(e.Depth)+1 != r.Depth {
			return nil, skep.Invalidf(op, "depth", r.Depth, int(e.Depth)+1)
		}
	}
	return out, nil
}

func out0(in []*incoming) *incoming {
	if len(in) == 0 {
		return &incoming{}
	}
	return in[0]
}

// describe fills a block's record from its identity and manifest.
func (s *Store) describe(op string, ns *namespaces.Namespace, spec *skep.NamespaceSpec, t namespaces.Tag, in *incoming, parent *skep.Key, depth int,
	key skep.Key, name []byte, validTokens int, replaces *skep.Key, m skep.Manifest) error {
	if err := skep.ValidateBlock(op, spec, depth, validTokens, key, parent, name, m); err != nil {
		return err
	}
	rec := &in.Record
	rec.Instance, rec.NamespaceID, rec.SaltTag = ns.Instance, uint32(ns.Info.ID), segment.SaltTag(t)
	rec.Key, rec.Depth = key, uint32(depth)
	if validTokens < spec.Shape.BlockTokens {
		rec.ValidTokens = uint32(validTokens)
	}
	if t != (namespaces.Tag{}) {
		rec.Flags |= segment.RecordSalted
	}
	if spec.Class == skep.Durable {
		rec.Flags |= segment.RecordDurable
	}
	rec.Name = append([]byte(nil), name...)
	var err error
	if in.Key, err = s.keys.Sealer(op, spec.Tenant); err != nil {
		return err
	}
	in.FP = s.names.Fingerprint(ns.Instance, t, key)
	if parent != nil {
		p := *parent
		rec.Parent = &p
		in.HasParent, in.Parent = true, s.names.Fingerprint(ns.Instance, t, p)
	}
	if replaces != nil {
		k := *replaces
		rec.Replaces = &k
		fp := s.names.Fingerprint(ns.Instance, t, k)
		in.Replaces = &fp
	}
	rec.Parts = make([]segment.RecordPart, len(m))
	for i, p := range m {
		if want := ns.PartSize(p.Name); want >= 0 && p.Size != want {
			return skep.Invalidf(op, "size of part "+p.Name, p.Size, want)
		}
		g, err := layout.GranulesOf(ns.Info.Shape, p.Name, p.Size)
		if err != nil {
			return err
		}
		rec.Parts[i] = segment.RecordPart{Name: p.Name, Size: p.Size, Sums: make([]uint64, g.N())}
		in.Size += p.Size
		in.Pages += layout.PagesOf(p.Size)
	}
	if in.Inlined() {
		in.Pages = 0
	}
	rec.Pages = uint32(in.Pages)
	return nil
}

// putCommitted stores blocks and waits until each is committed or declined.
func (s *Store) putCommitted(ctx context.Context, ns *namespaces.Namespace, blocks []*incoming) error {
	if s.writeback.Filters(ns) {
		return s.accept(ctx, ns, blocks)
	}
	todo, err := s.winners(ctx, ns, blocks)
	if err != nil {
		return err
	}
	defer s.land(todo)
	return s.appends.Write(ctx, ns, space.User, toWrite(todo))
}

// winners leaves the blocks this call is the first to put. In chained namespaces
// the others become Exists; a put of the same key under way is waited for.
func (s *Store) winners(ctx context.Context, ns *namespaces.Namespace, blocks []*incoming) (todo []*incoming, err error) {
	if !ns.Info.Chained {
		return blocks, nil
	}
	defer func() {
		if err != nil {
			s.land(todo)
			todo = nil
		}
	}()
	ours := make(map[index.Fingerprint]*incoming, len(blocks))
	// In one order for all, whatever order they come in: two puts that each waited for a key
	// of the other's would wait for ever.
	ordered := slices.Clone(blocks)
	slices.SortStableFunc(ordered, func(a, b *incoming) int { return bytes.Compare(a.FP[:], b.FP[:]) })
	for _, in := range ordered {
		for {
			if e, ok := s.index.Resolve(in.FP); ok && !s.givesWay(ns, in.FP, e) && s.exists(ns, in, e) {
				break
			}
			mine, other := s.puts.Flights.Join(in.FP)
			if mine != nil {
				// The index may have changed since it was asked.
				if e, ok := s.index.Resolve(in.FP); ok && s.exists(ns, in, e) {
					s.puts.Flights.Leave(in.FP, mine)
					break
				}
				in.flight = mine
				ours[in.FP] = in
				todo = append(todo, in)
				break
			}
			if first := ours[in.FP]; first != nil {
				*in.Result = skep.PutResult{Outcome: skep.Exists, Differs: !sameParts(first.Parts, in.Parts)}
				s.count.PutExists.Add(1)
				break
			}
			select {
			case <-other.Done():
			case <-ctx.Done():
				return todo, &skep.Error{Op: "put", Kind: skep.Deadline, Err: ctx.Err()}
			case <-s.closing:
				return todo, errClosed
			}
		}
	}
	todo = todo[:0]
	for _, in := range blocks { // in their own order again
		if in.flight != nil {
			todo = append(todo, in)
		}
	}
	return todo, nil
}

func sameParts(a, b []skep.Part) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if string(a[i].Bytes) != string(b[i].Bytes) {
			return false
		}
	}
	return true
}

// land ends the flights of blocks, stored or not.
func (s *Store) land(blocks []*incoming) {
	for _, in := range blocks {
		if in.flight != nil {
			s.puts.Flights.Leave(in.FP, in.flight)
			in.flight = nil
		}
	}
}

// exists answers a put that came second, and says whether its bytes differ: by
// comparing checksums, which were computed under the first put's version. Where the
// first one's record cannot be read nobody knows, and it says that they do not.
// False: the first one has gone meanwhile.
func (s *Store) exists(ns *namespaces.Namespace, in *incoming, e index.Entry) bool {
	first, err := s.rows.RecordNow(in.FP, e)
	if err == commit.ErrGone {
		return false
	}
	in.Result.Outcome = skep.Exists
	s.count.PutExists.Add(1)
	s.index.Touch(in.FP) // computing it again was a use of it
	s.writeback.Use(in.FP)
	if err == nil {
		err = s.keys.ClearSums(ns.Info.Tenant, &first)
	}
	if err != nil {
		return true
	}
	in.Result.Differs = !s.sameBytes(ns, &first, in)
	if in.Result.Differs {
		s.count.PutDiffers.Add(1)
	}
	return true
}

func (s *Store) sameBytes(ns *namespaces.Namespace, first *segment.Record, in *incoming) bool {
	if len(first.Parts) != len(in.Record.Parts) || first.ValidTokens != in.Record.ValidTokens {
		return false
	}
	in.Record.Version = first.Version
	for i := range in.Record.Parts {
		p := &in.Record.Parts[i]
		if p.Name != first.Parts[i].Name || p.Size != first.Parts[i].Size {
			return false
		}
		in.Sum(ns, i)
		for j, sum := range p.Sums {
			if sum != first.Parts[i].Sums[j] {
				return false
			}
		}
	}
	return true
}

// Want implements skep.Putter.
func (s *Store) Want(ctx context.Context, r *skep.WantRequest) ([]skep.Want, error) {
	if err := s.enterWrite(ctx, "want"); err != nil {
		return nil, err
	}
	defer s.leave()
	if len(r.Keys) > skep.MaxChainKeys {
		return nil, skep.Invalidf("want", "keys", len(r.Keys), fmt.Sprintf("at most %d", skep.MaxChainKeys))
	}
	if r.Bytes < 0 {
		return nil, skep.Invalidf("want", "bytes", r.Bytes, "0 or more")
	}
	ns, t, err := s.names.Resolve("want", r.Scope)
	if err != nil {
		return nil, err
	}
	out := make([]skep.Want, len(r.Keys))
	for i, k := range r.Keys {
		fp := s.names.Fingerprint(ns.Instance, t, k)
		if e, ok := s.index.Resolve(fp); ok && ns.Info.Chained && !s.unreadableCache(ns, fp, e) {
			out[i] = skep.Want{Outcome: skep.Exists}
			continue
		}
		out[i] = skep.Want{Wanted: true}
	}
	return out, nil
}

// Flush implements skep.Putter.
func (s *Store) Flush(ctx context.Context) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	s.writeback.Flush()
	if err := s.puts.Accepted.Wait(ctx); err != nil {
		return err
	}
	return s.rows.Sync(ctx)
}
