package store

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/commit"
	"github.com/skepkv/skep/store/internal/crypt"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/observe"
	"github.com/skepkv/skep/store/internal/puts"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/memory"
	"github.com/skepkv/skep/store/segment"
)

// incoming is one block on its way in.
type incoming struct {
	commit.Block
	parts  []skep.Part // the bytes, in manifest order; nil once they are on the drives
	given  []skep.Part // where others can write those: parts is a copy, of each append's own. Else nil
	loan   *loan       // of the memory they lie in; nil: nobody waits for it
	copies []layout.Location
	held   []held           // its parts in the DRAM tier
	shared []*memory.Buffer // references to them, while it is written from there
	flight *puts.Flight
	tries  int // how often it was put elsewhere
	// Of a block that is moved, from elsewhere.
	moved bool
	group *space.Group // of what the mover moves: its group, which is pinned
	anew  bool         // it starts where its chain says, not on the device it started on
	// Of a block that is to be encrypted; nil: it is not.
	key    *crypt.Secret
	clear  []segment.RecordPart // of its record, before that was sealed
	cipher []skep.Part          // what goes to the drives
}

// again is the block of a record that lies at l, to be written again elsewhere.
func again(fp index.Fingerprint, rec *segment.Record, l layout.Location) *incoming {
	return &incoming{moved: true, Block: commit.Block{FP: fp, Record: *rec, Pages: int(rec.Pages), Size: rec.Bytes(),
		From: l, Result: &skep.PutResult{}}}
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
	l := lend(r.Released)
	for _, in := range blocks {
		if r.Exposed {
			in.given = in.parts
		} else {
			in.loan = l
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
		in.parts = b.Parts
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
	if in.key, err = s.keys.Sealer(op, spec.Tenant); err != nil {
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
		g, err := s.granules(ns, p.Name, p.Size)
		if err != nil {
			return err
		}
		rec.Parts[i] = segment.RecordPart{Name: p.Name, Size: p.Size, Sums: make([]uint64, g.N())}
		in.Size += p.Size
		in.Pages += pagesOf(p.Size)
	}
	if in.inlined() {
		in.Pages = 0
	}
	rec.Pages = uint32(in.Pages)
	return nil
}

func pagesOf(n int64) int { return int((n + layout.PageSize - 1) / layout.PageSize) }

// granules is how part's bytes are cut into what one checksum covers.
func (s *Store) granules(ns *namespaces.Namespace, part string, size int64) (layout.Granules, error) {
	return layout.GranulesOf(ns.Info.Shape, part, size)
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
	return s.write(ctx, ns, space.User, todo)
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
				*in.Result = skep.PutResult{Outcome: skep.Exists, Differs: !sameParts(first.parts, in.parts)}
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
		s.sum(ns, in, i)
		for j, sum := range p.Sums {
			if sum != first.Parts[i].Sums[j] {
				return false
			}
		}
	}
	return true
}

// sum computes the granule checksums of part i.
func (s *Store) sum(ns *namespaces.Namespace, in *incoming, i int) {
	s.sumInto(ns, in, i, in.Record.Parts[i].Sums)
}

func (s *Store) sumInto(ns *namespaces.Namespace, in *incoming, i int, sums []uint64) {
	p := &in.Record.Parts[i]
	g, err := s.granules(ns, p.Name, p.Size)
	if err != nil {
		return // describe has been through here
	}
	of := segio.Sums{Granules: g, Seed: in.Record.Seed(i), Sums: sums}
	of.Compute(in.parts[i].Bytes)
}

// Limits of one append and of what one put has under way. An append is one record
// log entry group and one catalog batch; several under way keep the drives busy
// while checksums are computed.
const (
	appendBytes  = 16 << 20
	appendBlocks = 512
	writeWindow  = 48 << 20
)

// write stores blocks: place, write, checksum, log, commit, publish; several
// appends under way at once. Each block's result is filled.
func (s *Store) write(ctx context.Context, ns *namespaces.Namespace, st space.Stream, blocks []*incoming) error {
	if st == space.User && s.catalogRoom.Full() {
		s.decline(blocks, skep.Full)
		return nil
	}
	keys := make([]index.Fingerprint, len(blocks))
	for i, in := range blocks {
		keys[i] = in.FP
	}
	s.puts.Rivals.Begin(keys, s.root.Last())
	defer s.puts.Rivals.End(keys)
	var underway []*appending
	var bytes int64
	finish := func() error {
		a := underway[0]
		underway = underway[1:]
		bytes -= a.bytes
		return s.finish(ctx, ns, a)
	}
	drain := func() (err error) {
		for len(underway) > 0 {
			if e := finish(); err == nil {
				err = e
			}
		}
		return err
	}
	for len(blocks) > 0 {
		patience := s.options.SpaceTimeout
		if len(underway) > 0 {
			patience = 0 // what is to be cleaned may be what our own appends lie in
		}
		a, n, err := s.placeBy(ctx, ns, st, blocks, time.Now().Add(patience))
		if err != nil {
			waits := len(underway) > 0
			if e := drain(); e != nil {
				return e
			}
			if waits {
				continue
			}
			if skep.KindOf(err) != skep.Full && skep.KindOf(err) != skep.DeviceFailed {
				return err
			}
			s.decline(blocks[:n], skep.KindOf(err))
			blocks = blocks[n:]
			continue
		}
		blocks = blocks[n:]
		s.start(ctx, ns, a)
		underway = append(underway, a)
		for bytes += a.bytes; bytes > writeWindow && len(underway) > 1; {
			if err := finish(); err != nil {
				drain()
				return err
			}
		}
	}
	return drain()
}

func (s *Store) decline(blocks []*incoming, why skep.Kind) {
	for _, in := range blocks {
		*in.Result = skep.PutResult{Outcome: skep.Declined, Reason: why}
		s.count.Declined.Add(why)
	}
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
