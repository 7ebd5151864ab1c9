package appender

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/memory"
)

// Loan is memory that drives were given to write from, or to read into: a caller's, a client's,
// the DRAM tier's, the arena's. Nothing can take it back from them, so whoever lent it has it
// back when the last drive has let go, however long ago the call was answered, and is told then.
//
//	Lend ──▶ take, for each append (read) that is given to drives ──▶ Back, when its last write (it) has ended
//	     └─▶ Settle, by who lent it: it is back already, or told is called by the last that lets go
type Loan struct {
	holds atomic.Int64
	told  func() // on a goroutine of a device: it does not block
}

// Lend begins a loan. told may be nil.
func Lend(told func()) *Loan {
	l := &Loan{told: told}
	l.holds.Store(1)
	return l
}

func (l *Loan) take() {
	if l != nil {
		l.holds.Add(1)
	}
}

// Back is called when a drive, or the lender itself, is done with it.
func (l *Loan) Back() {
	if l != nil && l.holds.Add(-1) == 0 && l.told != nil {
		l.told()
	}
}

// Settle ends the lender's own use. False: drives have the memory yet, and told will be called.
func (l *Loan) Settle() bool { return l.holds.Add(-1) == 0 }

// backAll is Back for each of them.
func backAll(list []*Loan) {
	for _, l := range list {
		l.Back()
	}
}

// takeLoans has an append hold what its blocks were lent in, until its writes have ended.
func (a *Append) takeLoans() {
	for _, in := range a.blocks {
		if in.Loan != nil && !slices.Contains(a.loans, in.Loan) {
			in.Loan.take()
			a.loans = append(a.loans, in.Loan)
		}
	}
}

var errUnusable = &skep.Error{Op: "put", Kind: skep.Invalid, Field: "memory of the parts", Value: "a drive cannot read it",
	Limit: "memory of the process's own, or of Alloc"}

// own takes copies of an append's blocks that lie in memory others can write: what is hashed,
// encrypted and written is the copy. memory.ErrScarce: there is no memory now, and it is not to be
// waited for. On an error a keeps what it took, which the caller releases.
func (w *Appender) own(ctx context.Context, a *Append, patient bool) error {
	for _, in := range a.blocks {
		if in.Given == nil {
			continue
		}
		in.Parts = slices.Clone(in.Given)
		for i := range in.Parts {
			p := &in.Parts[i]
			if len(p.Bytes) == 0 {
				continue
			}
			mem, err := w.ownMemory(ctx, a, len(p.Bytes), patient)
			if err != nil {
				return err
			}
			copy(mem, p.Bytes)
			w.Count.Copied.Add(int64(len(mem)))
			p.Bytes = mem
		}
	}
	return nil
}

// ownMemory gives an I/O buffer that an append keeps until its writes have ended. What is larger
// than those are, or would take most of them, is on the heap.
func (w *Appender) ownMemory(ctx context.Context, a *Append, n int, patient bool) ([]byte, error) {
	if n > w.Arena.MaxBlock() || w.takesMost(a, n) {
		return device.AlignedBuffer(layout.PagesOf(int64(n)) * layout.PageSize)[:n], nil
	}
	b, err := w.Arena.TryAlloc(n, memory.BudgetIO)
	if err != nil && !patient {
		return nil, memory.ErrScarce
	}
	if err != nil {
		wait, cancel := context.WithTimeout(ctx, w.OpTimeout)
		defer cancel()
		if b, err = w.Arena.Alloc(wait, n, memory.BudgetIO); err != nil {
			return nil, noMemory("put", err)
		}
	}
	a.bufs = append(a.bufs, b)
	return b.Bytes(), nil
}
