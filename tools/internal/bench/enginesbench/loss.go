package enginesbench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/skepkv/skep"
)

// What Options.Kill may be.
const (
	killNode   = "node"
	killMaster = "master"
)

// Pass is one go over all blocks, a batch after the other.
type Pass struct {
	Got     int     `json:"got"`     // that came, or were stored, in all their bytes (blocks)
	Missed  int     `json:"missed"`  // that the cluster says it has not, now (blocks)
	Failed  int     `json:"failed"`  // that it could not say of (blocks)
	Wrong   int     `json:"wrong"`   // that came with other bytes (blocks)
	Seconds float64 `json:"seconds"` // of its calls (s)
	Slowest float64 `json:"slowest"` // of its calls (s)
}

// Loss is what a kill cost, by one way.
type Loss struct {
	Way    string `json:"way"`    // each, go or mooncake, as of rows
	Copies int    `json:"copies"` // nodes that have each block (nodes)
	Killed string `json:"killed"` // node; master: Mooncake's, or the node that leads skep's
	Blocks int    `json:"blocks"` // that were there (blocks)
	First  Pass   `json:"first"`  // gets, at once after the kill
	// from the kill to the end of the first pass in which none failed; -1: there was none (s)
	Answers float64 `json:"answers"`
	Last    Pass    `json:"last"` // gets: that pass, or the last
	Put     Pass    `json:"put"`  // puts of as many new blocks then
	Back    Pass    `json:"back"` // gets, the process being there again: the first that got all, or the last
	// from when it was ready again to the end of that pass; -1: not all came back (s)
	Returned float64 `json:"returned"`
}

var errWrong = errors.New("other bytes")

// asked is a client that says what became of each block.
type asked interface {
	fill(ctx context.Context) error         // puts all blocks, and waits until they are where they stay
	pass(ctx context.Context) (Pass, error) // gets them
	more(ctx context.Context) (Pass, error) // puts as many new ones
	end(ctx context.Context) error          // deletes all
}

// lossy is a way one of whose processes may be killed, and be started again.
type lossy interface {
	asked
	kill(ctx context.Context, what string) error
	again(ctx context.Context) error
}

// lose kills a process of each way, round by round.
func (e *runner) lose(ctx context.Context, ways []*way) error {
	for round := range e.Rounds {
		for _, w := range ways {
			e.Note("round %d of %d: %s, copies %d", round+1, e.Rounds, w.name, w.copies)
			l, err := e.loss(ctx, w)
			if err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
			e.res.Losses = append(e.res.Losses, l)
		}
	}
	return nil
}

func (e *runner) loss(ctx context.Context, w *way) (l Loss, err error) {
	l = Loss{Way: w.name, Copies: w.copies, Killed: e.Kill, Blocks: e.Blocks}
	if err := w.fill(ctx); err != nil {
		return l, err
	}
	wrong := 0
	pass := func(ctx context.Context) (Pass, error) {
		p, err := w.pass(ctx)
		wrong += p.Wrong
		return p, err
	}
	before, err := pass(ctx)
	if err != nil {
		return l, err
	}
	if before.Got != e.Blocks {
		return l, fmt.Errorf("before the kill %d of %d blocks came", before.Got, e.Blocks)
	}
	if err := w.kill(ctx, e.Kill); err != nil {
		return l, err
	}
	n := 0
	l.Answers, l.Last, err = e.until(ctx, pass, func(p Pass) bool {
		if n++; n == 1 {
			l.First = p
		}
		return p.Failed == 0
	})
	if err != nil {
		return l, err
	}
	if l.Put, err = w.more(ctx); err != nil {
		return l, err
	}
	if err := w.again(ctx); err != nil {
		return l, err
	}
	if l.Returned, l.Back, err = e.until(ctx, pass, func(p Pass) bool { return p.Got == e.Blocks }); err != nil {
		return l, err
	}
	if wrong > 0 {
		return l, fmt.Errorf("%d blocks came with other bytes", wrong)
	}
	return l, w.end(ctx)
}

// until makes passes until one is well, for Options.Seconds, and gives that one or the last, with the seconds to its
// end or -1.
func (e *runner) until(
	ctx context.Context, pass func(context.Context) (Pass, error), well func(Pass) bool,
) (after float64, p Pass, err error) {
	for began := time.Now(); ; {
		if p, err = pass(ctx); err != nil {
			return 0, p, err
		}
		took := time.Since(began)
		switch {
		case well(p):
			return took.Seconds(), p, nil
		case took > time.Duration(e.Seconds)*time.Second:
			return -1, p, nil
		}
		select {
		case <-ctx.Done():
			return 0, p, ctx.Err()
		case <-time.After(lookAgain):
		}
	}
}

// killable has a client's cluster lose nodes.
type killable struct {
	asked
	c      *cluster
	killed *node
}

func (c *cluster) lossy(a asked) lossy { return &killable{asked: a, c: c} }

func (k *killable) fill(ctx context.Context) error {
	if _, err := k.c.whole(ctx); err != nil {
		return err
	}
	return k.asked.fill(ctx)
}

func (k *killable) kill(ctx context.Context, what string) error {
	leader, err := k.c.whole(ctx)
	if err != nil {
		return err
	}
	for _, n := range k.c.nodes {
		if (n == leader) == (what == killMaster) {
			k.killed = n
		}
	}
	return k.killed.kill()
}

func (k *killable) again(ctx context.Context) error { return k.c.serve(ctx, k.killed) }

func (k *killable) end(ctx context.Context) error {
	if _, err := k.c.whole(ctx); err != nil {
		return err
	}
	return k.asked.end(ctx)
}

func (c *pythonClient) fill(context.Context) error { _, err := c.ask("fill"); return err }
func (c *pythonClient) end(context.Context) error  { _, err := c.ask("end"); return err }

func (c *pythonClient) pass(context.Context) (Pass, error) {
	r, err := c.ask("pass")
	return r.Pass, err
}

func (c *pythonClient) more(context.Context) (Pass, error) {
	r, err := c.ask("more")
	return r.Pass, err
}

func (c *pythonClient) kill(_ context.Context, what string) error {
	_, err := c.ask("kill " + what)
	return err
}

func (c *pythonClient) again(context.Context) error { _, err := c.ask("again"); return err }

func (b *goWay) fill(ctx context.Context) error {
	b.begin()
	if _, _, err := b.each(ctx, b.put); err != nil {
		return err
	}
	return b.st.Flush(ctx)
}

func (b *goWay) end(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		_, err := b.st.Delete(ctx, b.scope, append(b.keys, b.later...))
		if !errors.Is(err, skep.Unavailable) { // a node that was away is asked again after a while
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(lookAgain):
		}
	}
}

func (b *goWay) pass(ctx context.Context) (p Pass, err error) {
	clear(b.memory)
	values := b.values
	err = b.counted(ctx, &p, func(keys []skep.Key, memory []byte) (bad []error, err error) {
		bad = make([]error, len(keys))
		err = skep.Load(ctx, b.st, b.chains(keys, memory), func(c *skep.Chunk) error {
			bad[c.Chain] = errors.Join(bad[c.Chain], c.Err)
			return nil
		})
		for i := range bad {
			at := int64(i) * b.BlockBytes
			if bad[i] == nil && err == nil && !bytes.Equal(memory[at:at+b.BlockBytes], values[at:at+b.BlockBytes]) {
				bad[i] = errWrong
			}
		}
		values = values[len(memory):]
		return bad, err
	})
	return p, err
}

func (b *goWay) more(ctx context.Context) (p Pass, err error) {
	keys := b.keys
	b.begin()
	defer func() { b.keys, b.later = keys, b.keys }()
	err = b.counted(ctx, &p, func(keys []skep.Key, memory []byte) ([]error, error) {
		return b.stored(ctx, &skep.PutRequest{Scope: b.scope, Each: b.alone}, keys, memory)
	})
	return p, err
}

// counted does all blocks, batch by batch, and counts what became of each.
func (b *goWay) counted(ctx context.Context, p *Pass, do func([]skep.Key, []byte) ([]error, error)) error {
	_, _, err := b.each(ctx, func(_ context.Context, keys []skep.Key, memory []byte) error {
		began := time.Now()
		bad, err := do(keys, memory)
		took := time.Since(began).Seconds()
		p.Seconds, p.Slowest = p.Seconds+took, max(p.Slowest, took)
		for _, why := range bad {
			switch why = errors.Join(why, err); {
			case why == nil:
				p.Got++
			case errors.Is(why, errWrong):
				p.Wrong++
			case errors.Is(why, skep.NotFound) || errors.Is(why, skep.Evicted):
				p.Missed++
			default:
				p.Failed++
			}
		}
		return ctx.Err()
	})
	return err
}
