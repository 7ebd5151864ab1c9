package memory

import (
	"context"
	"fmt"
	"time"
)

// request is a validated allocation.
type request struct {
	budget Budget
	lens   []int
	bytes  int64 // to be charged
}

func pagesFor(n int) int { return (n + PageSize - 1) / PageSize }

func (a *Arena) request(budget Budget, lens []int) (request, error) {
	if budget >= numBudgets {
		return request{}, invalid("budget", uint8(budget), "BudgetIO or BudgetCache")
	}
	if len(lens) == 0 {
		return request{}, invalid("lens", "none", "at least one length")
	}
	r := request{budget: budget, lens: lens}
	for _, n := range lens {
		if n <= 0 || n > a.opts.MaxBlock {
			return request{}, invalid("buffer length", n, fmt.Sprintf("from 1 to %d", a.opts.MaxBlock))
		}
		r.bytes += int64(pagesFor(n)) * PageSize
		if limit := a.limit(budget); r.bytes > limit {
			return request{}, invalid("allocation from "+budget.String(), r.bytes, fmt.Sprintf("at most %d", limit))
		}
	}
	return r, nil
}

func (a *Arena) limit(b Budget) int64 {
	if b == BudgetIO {
		return a.opts.IO
	}
	return a.opts.Cache
}

// verdict is how an attempt at a request went.
type verdict uint8

const (
	granted     verdict = iota
	queued              // others wait for this budget
	overBudget          // the budget is used up
	noWindow            // within its budget, but the mapping is fragmented
	yieldsToIO          // memory is being cleared for BudgetIO
	arenaClosed         // Close has been called
)

// attemptLocked grants r if that is possible at this moment. Otherwise lack says
// what an eviction would have to bring; it is zero when none would help.
func (a *Arena) attemptLocked(r *request) (bufs []*Buffer, v verdict, lack want) {
	if a.mu.closing {
		return nil, arenaClosed, want{}
	}
	if over := a.mu.used[r.budget] + r.bytes - a.limit(r.budget); over > 0 {
		if r.budget == BudgetCache {
			lack.bytes = over
		}
		return nil, overBudget, lack
	}
	if r.budget == BudgetCache && a.mu.starved {
		return nil, yieldsToIO, want{}
	}
	bufs = make([]*Buffer, 0, len(r.lens))
	for _, n := range r.lens {
		pages := pagesFor(n)
		page, ok := a.mu.buddy.alloc(pages)
		if !ok {
			for _, b := range bufs {
				a.mu.buddy.release(b.page, b.pages)
			}
			return nil, noWindow, want{bytes: int64(pages) * PageSize, window: 1 << orderFor(pages)}
		}
		off := page * PageSize
		b := &Buffer{arena: a, page: page, pages: pages, budget: r.budget,
			mem: a.mem[off : off+n : off+pages*PageSize]}
		b.state.Store(oneRef)
		bufs = append(bufs, b)
	}
	for _, b := range bufs {
		a.takeLocked(b.page * PageSize)
	}
	if invariants {
		for _, b := range bufs {
			checkPoison(b.mem[:cap(b.mem)])
		}
	}
	a.mu.used[r.budget] += r.bytes
	a.mu.live += int64(len(bufs))
	return bufs, granted, want{}
}

// refusalLocked turns the verdict on r into its error. cause is what ended the wait.
func (a *Arena) refusalLocked(r *request, v verdict, cause error) error {
	if v == arenaClosed {
		return closed("alloc")
	}
	e := &NoMemoryError{Field: r.budget.String(), Wanted: r.bytes, Used: a.mu.used[r.budget], Limit: a.limit(r.budget), cause: cause}
	if v == noWindow || v == yieldsToIO {
		e.Field = "mapping"
	}
	return e
}

// tryAlloc attempts, evicts, and attempts again as long as eviction gives
// something. Each round frees cached bytes, so the rounds are finite unless
// others fill the cache as fast, and then the bound on rounds ends it.
func (a *Arena) tryAlloc(budget Budget, lens []int) ([]*Buffer, error) {
	r, err := a.request(budget, lens)
	if err != nil {
		return nil, err
	}
	rounds := 64 + len(lens)
	for round, exhausted := 0, false; ; round++ {
		a.mu.Lock()
		bufs, v, lack := []*Buffer(nil), queued, want{}
		if len(a.mu.queue[budget]) == 0 {
			bufs, v, lack = a.attemptLocked(&r)
		}
		if v == granted {
			a.mu.Unlock()
			return bufs, nil
		}
		reclaimer := a.mu.reclaimer
		if reclaimer == nil || lack.bytes == 0 || exhausted || round == rounds {
			defer a.mu.Unlock()
			return nil, a.refusalLocked(&r, v, nil)
		}
		a.mu.Unlock()
		freed, _ := reclaimer.reclaim(lack)
		exhausted = freed == 0 // once more: others may have freed meanwhile
	}
}

func (a *Arena) alloc(ctx context.Context, budget Budget, lens []int) ([]*Buffer, error) {
	r, err := a.request(budget, lens)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	if len(a.mu.queue[budget]) == 0 {
		if bufs, v, _ := a.attemptLocked(&r); v == granted {
			a.mu.Unlock()
			return bufs, nil
		}
	}
	if a.mu.closing {
		a.mu.Unlock()
		return nil, closed("alloc")
	}
	w := &waiter{ready: make(chan struct{}, 1)}
	a.mu.queue[budget] = append(a.mu.queue[budget], w)
	a.waiting.Add(1)
	a.mu.Unlock()
	return a.wait(ctx, w, &r)
}

// wait serves the waiter w: when it is first in its queue it attempts, evicts
// what is lacking, and sleeps until something has changed.
func (a *Arena) wait(ctx context.Context, w *waiter, r *request) ([]*Buffer, error) {
	for {
		a.mu.Lock()
		bufs, v, lack := []*Buffer(nil), queued, want{}
		if a.mu.queue[r.budget][0] == w {
			bufs, v, lack = a.attemptLocked(r)
			if r.budget == BudgetIO {
				a.mu.starved = v == noWindow
			}
		}
		if a.mu.closing {
			v = arenaClosed
		}
		reclaimer := a.mu.reclaimer
		switch ended := ctx.Err(); {
		case v == granted:
			a.leaveLocked(w, r.budget)
			a.mu.Unlock()
			return bufs, nil
		case v == arenaClosed || ended != nil:
			err := a.refusalLocked(r, v, ended)
			a.leaveLocked(w, r.budget)
			a.mu.Unlock()
			return nil, err
		}
		a.mu.Unlock()

		var retry time.Duration
		if reclaimer != nil && lack.bytes > 0 {
			var freed int64
			if freed, retry = reclaimer.reclaim(lack); freed > 0 {
				continue
			}
		}
		sleep(ctx, w.ready, retry)
	}
}

// sleep returns when ready has something, ctx has ended, or, if retry is
// positive, when that has passed.
func sleep(ctx context.Context, ready <-chan struct{}, retry time.Duration) {
	var again <-chan time.Time
	if retry > 0 {
		t := time.NewTimer(retry)
		defer t.Stop()
		again = t.C
	}
	select {
	case <-ready:
	case <-ctx.Done():
	case <-again:
	}
}
