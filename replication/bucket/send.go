package bucket

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/runs"
)

// passPage is how many blocks are listed together.
const passPage = 1024

// memoryFor is how long the blocks of an object wait for memory: who deletes one of them waits for it.
const memoryFor = 10 * time.Second

// together is how many blocks of a chain lie beside each other in an object.
const together = 64

// pass looks at the node's blocks once and sends what is worth it.
func (s *Store) pass(ctx context.Context) error {
	if !s.o.Serves() {
		return nil
	}
	st, err := s.Stats(ctx)
	if err != nil {
		return err
	}
	if st.CapacityBytes > 0 && float64(used(&st)) < s.o.BeginAt*float64(max(st.CapacityBytes, st.DeviceBytes)) {
		return nil
	}
	list, err := s.Namespaces(ctx)
	if err != nil {
		return err
	}
	for _, info := range list {
		if !may(&info.NamespaceSpec) || !s.o.Sends(&info.NamespaceSpec) {
			continue
		}
		for at := uint64(0); ; {
			if at, err = s.passObjects(ctx, info, at); err != nil {
				return err
			}
			if at == 0 {
				break
			}
		}
	}
	return nil
}

// used is the bytes of a Store that blocks take, those of groups that are to be written over not among them.
func used(st *skep.Stats) int64 {
	n := st.DeviceBytes
	if all := int64(st.Groups + st.FreeGroups); all > 0 {
		n -= st.DeviceBytes / all * int64(st.FreeGroups)
	}
	return n
}

// rest waits until so many bytes may go by the rate, and looks at the bucket where it is time: a pass may take hours.
func (s *Store) rest(ctx context.Context, n int64) error {
	for {
		if err := s.budget.wait(ctx, min(n, paceStep)); err != nil {
			return err
		}
		if time.Since(s.looked) >= s.o.Every {
			if asked, err := s.refresh(ctx); !asked {
				return err
			} else if err != nil {
				s.o.Logger.Warn("object storage", "error", err)
			}
		}
		if n -= paceStep; n <= 0 {
			return nil
		}
	}
}

// passObjects sends an object or more of blocks of a namespace from a place of its listing on, where there are so many,
// and says where to go on.
func (s *Store) passObjects(ctx context.Context, info skep.NamespaceInfo, at uint64) (next uint64, err error) {
	sp, err := s.spaceOf(ctx, info.ID)
	if err != nil || sp == nil {
		return 0, nil // deleted meanwhile
	}
	var blocks []skep.StoredBlock
	total := int64(0)
	for {
		page, to, err := s.lister.ListBlocks(ctx, info.ID, together, at, passPage)
		if skep.KindOf(err) == skep.NotFound {
			return 0, nil
		}
		if err != nil {
			return 0, err
		}
		for i := range page {
			b := &page[i]
			n := runs.Bytes(b)
			whole := b.ValidTokens == 0 || b.ValidTokens == info.Shape.BlockTokens
			fits := n > 0 && n <= s.o.ObjectBytes && (s.tooLarge == 0 || runs.Memory(page[i:i+1]) < s.tooLarge)
			if whole && fits && (s.o.Unfound || s.found.was(&b.Key)) && !sp.hasNow(&b.Key) {
				blocks = append(blocks, *b)
				total += n
			}
		}
		if at = to; at == 0 || total >= s.o.ObjectBytes {
			break
		}
	}
	slices.SortFunc(blocks, func(a, b skep.StoredBlock) int {
		return cmp.Or(bytes.Compare(a.First[:], b.First[:]), cmp.Compare(a.Depth, b.Depth), bytes.Compare(a.Key[:], b.Key[:]))
	})
	for len(blocks) > 0 {
		some, n := blocks, int64(0)
		for i := range blocks {
			if n += runs.Bytes(&blocks[i]); i > 0 && n > s.o.ObjectBytes {
				some = blocks[:i]
				break
			}
		}
		blocks = blocks[len(some):]
		sent, err := s.send(ctx, sp, info.ID, some)
		if err == nil {
			err = s.rest(ctx, sent)
		}
		if err != nil {
			return 0, err
		}
	}
	return at, nil
}

// send puts one object of these blocks, those that are still there.
func (s *Store) send(ctx context.Context, sp *space, id skep.NamespaceID, blocks []skep.StoredBlock) (int64, error) {
	if err := sp.pass(ctx); err != nil {
		return 0, err
	}
	defer sp.passed()
	size := int64(0)
	for i := range blocks {
		size += runs.Bytes(&blocks[i])
	}
	room, err := s.trim(ctx, size)
	if err != nil {
		return 0, err
	}
	doubts := 0
	for _, sp := range s.all() {
		n, _ := sp.inDoubt()
		doubts += n
	}
	if doubts >= maxDoubts || !s.held.room(memoryOf(len(blocks))) {
		s.use.unindexed.Add(int64(len(blocks)))
		return 0, nil
	}
	if !room || !s.budget.canSend(size) {
		s.use.refused.Add(int64(len(blocks)))
		return 0, nil
	}
	if err := s.name(ctx, sp); err != nil {
		return 0, err
	}
	// What is deleted from here on is deleted of it, too, by whoever lists it: only then is it looked what was before.
	of := drawID(time.Now())
	blocks, err = s.announce(ctx, sp, of, blocks)
	if len(blocks) == 0 || err != nil {
		return 0, err
	}
	var o *object
	var records []record
	blocks = sp.send(blocks, time.Now())
	if !s.o.Serves() {
		blocks = nil
	}
	failed := false
	defer func() {
		sp.arrived(o, records, failed, time.Now())
		if o == nil || !failed { // it is there, or does not come
			s.withdraw(ctx, sp, of)
		}
	}()
	name := sp.name + blocksDir + of
	b := newBuilder(s.o.Key, name)
	b.body = make([]byte, 0, size+int64(len(blocks))*1024)
	soon, cancel := context.WithTimeout(ctx, memoryFor)
	defer cancel()
	for _, run := range runs.Cut(blocks) {
		if err = s.read(ctx, soon, id, run, b); err != nil {
			break
		}
	}
	// Where there is no memory what was read goes.
	if len(b.records) == 0 || err != nil && (skep.KindOf(err) != skep.NoMemory || ctx.Err() != nil) {
		return 0, err
	}
	body := b.end()
	s.budget.send(int64(len(body)))
	o, records = newObject(sp, of, int64(len(body)), b.salt), b.records
	// It is asked once: what came after a call that is made again, and was answered, would be in no book.
	put := func(ctx context.Context, _ func()) error { return s.o.Bucket.Put(ctx, name, body) }
	err = s.asking(ctx, &s.why.writes, put)
	if skep.KindOf(err) == skep.Denied {
		o = nil
	}
	if failed = err != nil; failed {
		return 0, err
	}
	s.use.sentObjects.Add(1)
	s.use.sentBlocks.Add(int64(len(records)))
	s.use.sentBytes.Add(int64(len(body)))
	return int64(len(body)), nil
}

// name says in the bucket whose a space is, before there is an object in it.
func (s *Store) name(ctx context.Context, sp *space) error {
	if sp.named.Load() {
		return nil
	}
	b, err := sealText(sp.key, sp.name+specName, &sp.spec)
	if err == nil {
		s.budget.owe(1, 0, 0)
		put := func(ctx context.Context) error { return s.o.Bucket.Put(ctx, sp.name+specName, b) }
		err = s.asked(ctx, &s.why.writes, put)
	}
	sp.named.Store(err == nil)
	return err
}

// read seals a run of blocks as the node's Store has them. What cannot be read, or is too large for memory, is left
// out. It waits for memory until soon ends.
func (s *Store) read(ctx, soon context.Context, id skep.NamespaceID, run []skep.StoredBlock, b *builder) error {
	mem, err := s.Alloc(soon, runs.Memory(run))
	switch {
	case err == nil:
	case skep.KindOf(err) != skep.NoMemory || soon.Err() != nil:
		return err
	case len(run) == 1:
		s.tooLarge = runs.Memory(run)
		s.o.Logger.Warn("blocks that are too large for memory are not sent", "bytes", s.tooLarge, "error", err)
		return nil
	default:
		for one := range slices.Chunk(run, 1) {
			if err := s.read(ctx, soon, id, one, b); err != nil {
				return err
			}
		}
		return nil
	}
	blocks, err := runs.Read(ctx, s.Store, id, run, mem.Bytes(), s.own.read)
	if !errors.Is(err, skep.NotReleased) { // else a drive has it yet
		defer mem.Release()
	}
	if skep.KindOf(err) == skep.NotFound { // the namespace was deleted meanwhile
		return nil
	}
	if err != nil {
		return err
	}
	for i := range blocks {
		if err := b.add(&run[i], blocks[i].Parts); err != nil {
			return fmt.Errorf("seal a block: %w", err)
		}
	}
	return nil
}
