package store

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/memory"
)

// loan is memory that drives were given to write from, or to read into: a caller's, a client's,
// the DRAM tier's, the arena's. Nothing can take it back from them, so whoever lent it has it
// back when the last drive has let go, however long ago the call was answered, and is told then.
//
//	lend ──▶ take, for each append (read) that is given to drives ──▶ back, when its last write (it) has ended
//	     └─▶ settle, by who lent it: it is back already, or told is called by the last that lets go
type loan struct {
	holds atomic.Int64
	told  func() // on a goroutine of a device: it does not block
}

func lend(told func()) *loan {
	l := &loan{told: told}
	l.holds.Store(1)
	return l
}

func (l *loan) take() {
	if l != nil {
		l.holds.Add(1)
	}
}

// back is called when a drive, or the lender itself, is done with it.
func (l *loan) back() {
	if l != nil && l.holds.Add(-1) == 0 && l.told != nil {
		l.told()
	}
}

// settle ends the lender's own use. False: drives have the memory yet, and told will be called.
func (l *loan) settle() bool { return l.holds.Add(-1) == 0 }

// backAll is back for each of them.
func backAll(list []*loan) {
	for _, l := range list {
		l.back()
	}
}

// takeLoans has an append hold what its blocks were lent in, until its writes have ended.
func (a *appending) takeLoans() {
	for _, in := range a.blocks {
		if in.loan != nil && !slices.Contains(a.loans, in.loan) {
			in.loan.take()
			a.loans = append(a.loans, in.loan)
		}
	}
}

// answerPut is the answer of a put whose parts lie in l's memory: NotReleased where that is not
// back, with the results where there are some.
func answerPut(l *loan, results []skep.PutResult, err error) ([]skep.PutResult, error) {
	if err != nil {
		results = nil
	}
	if l.settle() {
		return results, err
	}
	return results, &skep.Error{Op: "put", Kind: skep.NotReleased, Field: "memory of the parts", Value: "a drive's", Limit: "PutRequest.Released says when it is not", Err: err}
}

var errUnusable = &skep.Error{Op: "put", Kind: skep.Invalid, Field: "memory of the parts", Value: "a drive cannot read it", Limit: "memory of the process's own, or of Alloc"}

// own takes copies of an append's blocks that lie in memory others can write: what is hashed,
// encrypted and written is the copy. memory.ErrScarce: there is no memory now, and it is not to be
// waited for. On an error a keeps what it took, which the caller releases.
func (s *Store) own(ctx context.Context, a *appending, patient bool) error {
	for _, in := range a.blocks {
		if in.given == nil {
			continue
		}
		in.parts = slices.Clone(in.given)
		for i := range in.parts {
			p := &in.parts[i]
			if len(p.Bytes) == 0 {
				continue
			}
			mem, err := s.ownMemory(ctx, a, len(p.Bytes), patient)
			if err != nil {
				return err
			}
			copy(mem, p.Bytes)
			s.count.Copied.Add(int64(len(mem)))
			p.Bytes = mem
		}
	}
	return nil
}

// ownMemory gives an I/O buffer that an append keeps until its writes have ended. What is larger
// than those are is on the heap.
func (s *Store) ownMemory(ctx context.Context, a *appending, n int, patient bool) ([]byte, error) {
	if n > s.arena.MaxBlock() {
		return device.AlignedBuffer(pagesOf(int64(n)) * layout.PageSize)[:n], nil
	}
	b, err := s.arena.TryAlloc(n, memory.BudgetIO)
	if err != nil && !patient {
		return nil, memory.ErrScarce
	}
	if err != nil {
		wait, cancel := context.WithTimeout(ctx, s.options.OpTimeout)
		defer cancel()
		if b, err = s.arena.Alloc(wait, n, memory.BudgetIO); err != nil {
			return nil, noMemory("put", err)
		}
	}
	a.bufs = append(a.bufs, b)
	return b.Bytes(), nil
}
