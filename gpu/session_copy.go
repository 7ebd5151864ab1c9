package gpu

import (
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"github.com/skepkv/skep"
)

// Blocks are copied out of GPU memory one at a time, as they are asked for, and no more of them than the session's window.

// pending says whether there are blocks to be copied out of GPU memory.
func (ses *session) pending() bool {
	for _, c := range ses.chains {
		if c.next < c.to {
			return true
		}
	}
	return false
}

// copyNext copies the next block out of GPU memory, when there is one and the window has room for it. What is there
// no more is restored from behind when the others were copied. False: nothing is left of either.
func (ses *session) copyNext(ctx context.Context) (bool, error) {
	ses.mu.Lock()
	index := slices.IndexFunc(ses.chains, func(c *served) bool { return c.next < c.to && !c.left })
	if index < 0 {
		index = slices.IndexFunc(ses.chains, func(c *served) bool { return c.next < c.to })
	}
	if ses.closed || index < 0 {
		defer ses.mu.Unlock()
		if ses.closed {
			return false, errClosed
		}
		return false, nil
	}
	c := ses.chains[index]
	if c.unreleased != nil {
		defer ses.mu.Unlock()
		return false, c.unreleased
	}
	late := !c.Deadline.IsZero() && !skep.Steady().Before(c.Deadline)
	if c.stopped || late {
		kind := skep.Stopped
		if !c.stopped {
			kind = skep.Deadline
		}
		for ; c.next < c.to; c.next++ {
			ses.missLocked(index, c, c.next, kind)
		}
		ses.mu.Unlock()
		return true, nil
	}
	wait := c.Dest.Memory == nil && c.Dest.Paged == nil && ses.window > 0 && ses.lent > 0 && ses.lent+c.space.geometry.PartBytes() > ses.window
	var over <-chan time.Time
	if wait && !c.Deadline.IsZero() {
		over = time.After(c.Deadline.Sub(skep.Steady()))
	}
	ses.mu.Unlock()
	if wait {
		select {
		case <-over:
			return true, nil
		case <-ses.given:
			return true, nil
		case <-ctx.Done():
			return false, &skep.Error{Op: "next", Kind: skep.Deadline, Err: ctx.Err()}
		}
	}
	if c.left {
		return true, ses.restoreLate(ctx)
	}
	ok, err := ses.copyBlock(ctx, index, c)
	c.left = !ok && err == nil
	return true, err
}

// copyBlock copies the next block of a chain. Not ok: it is there no more.
func (ses *session) copyBlock(ctx context.Context, index int, c *served) (ok bool, err error) {
	size := c.space.geometry.PartBytes()
	p := ses.s.tier.pinned.take(size)
	defer p.release()
	var buf []byte
	if p != nil {
		buf = p.bytes
	} else {
		buf = make([]byte, size)
	}
	ok = ses.s.tier.get(ctx, c.ids[c.next], buf)
	if !ok {
		if ctx.Err() != nil {
			return false, &skep.Error{Op: "next", Kind: skep.Deadline, Err: ctx.Err()}
		}
		return false, nil
	}
	ses.keeping.Lock()
	defer ses.keeping.Unlock()
	if ses.over(c) {
		return true, nil
	}
	if err := ses.deliver(index, c, c.next, buf, p); err != nil {
		return false, err
	}
	ses.mu.Lock()
	c.next++
	ses.mu.Unlock()
	return true, nil
}

// restoreLate has the Store behind restore what left GPU memory, of all chains at once: what is not lent of the window
// is theirs.
func (ses *session) restoreLate(ctx context.Context) error {
	if err := ses.keeping.lockWithin(ctx); err != nil {
		return &skep.Error{Op: "next", Kind: skep.Deadline, Err: err}
	}
	defer ses.keeping.Unlock()
	r := &skep.RestoreRequest{Sums: ses.sums}
	var lates []int
	ses.mu.Lock()
	if ses.window > 0 {
		r.Window = max(1, ses.window-ses.lent)
	}
	for i, c := range ses.chains {
		if c.next < c.to && !c.stopped && !ses.closed {
			lates = append(lates, i)
			r.Chains = append(r.Chains, c.only(skep.Range{From: c.next, To: c.to}))
		}
	}
	ses.mu.Unlock()
	if len(lates) == 0 { // they were stopped meanwhile
		return nil
	}
	s, err := ses.s.Store.Restore(ctx, r)
	ses.mu.Lock()
	if err != nil {
		defer ses.mu.Unlock()
		for _, i := range lates {
			if errors.Is(err, skep.NotReleased) {
				ses.chains[i].unreleased = err
			}
		}
		return err
	}
	ses.late, ses.lates = s, lates
	var stopped []int
	for n, i := range lates {
		c := ses.chains[i]
		if c.next = c.to; c.stopped {
			stopped = append(stopped, n)
		}
	}
	closed := ses.closed
	ses.mu.Unlock()
	// Who stopped them waits for this, or was told that they are not released, and asks again.
	for _, n := range stopped {
		_ = s.Stop(ctx, n)
	}
	if closed {
		_ = s.Close(ctx)
	}
	return nil
}

// missLocked adds the chunks of a block that does not come: its chain was stopped, or its deadline is over.
func (ses *session) missLocked(index int, c *served, block int, kind skep.Kind) {
	for layers := range c.chunksOf(block) {
		err := &skep.Error{Op: "restore", Kind: kind, Field: "chain", Value: index}
		ses.ready = append(ses.ready, skep.Chunk{Chain: index, Block: block, Layers: layers, Err: err})
	}
}

// lendOut counts a chunk's bytes as lent until they are given back. REQUIRES: ses.mu.
func (ses *session) lendOut(ch *skep.Chunk) {
	free, n := ch.Free, ch.Bytes
	ses.lent += n
	ch.Free = func() {
		if free != nil {
			free()
		}
		ses.mu.Lock()
		ses.lent -= n
		ses.mu.Unlock()
		ses.gave()
	}
}

// gave has who waits for room in the window look again.
func (ses *session) gave() {
	select {
	case ses.given <- struct{}{}:
	default:
	}
}

// behind is the session of what left GPU memory; nil: there is none.
func (ses *session) behind() (late skep.Session, chains []int) {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	return ses.late, ses.lates
}

// nextLate delivers what left GPU memory while it was being restored.
func (ses *session) nextLate(ctx context.Context, into []skep.Chunk) (int, error) {
	late, chains := ses.behind()
	if late == nil || ses.lateOver {
		return 0, nil
	}
	n, err := late.Next(ctx, into)
	for i := range into[:n] {
		into[i].Chain = chains[into[i].Chain]
	}
	if err == io.EOF {
		ses.lateOver, err = true, nil
	}
	return n, err
}
