package restore

import (
	"context"
	"io"

	"github.com/skepkv/skep"
)

// ready is a chunk that its reader may have. By layers there are very many, and a reader may be slow, or call Next no
// more: of one that is in its destination the least is kept.
type ready struct {
	c     *chain
	item  int32
	tier  skep.Tier
	bytes int64
	more  *skep.Chunk // a miss, or what is lent
}

func (r *ready) chunk() skep.Chunk {
	if r.more != nil {
		return *r.more
	}
	block, layers := r.c.Chunk(int(r.item))
	return skep.Chunk{Chain: r.c.index, Block: block, Layers: layers, Bytes: r.bytes, Tier: r.tier}
}

// readyLocked has item i of c handed to the reader. REQUIRES: ses.mu.
func (ses *session) readyLocked(c *chain, i int, out *skep.Chunk) {
	if len(ses.ready) == cap(ses.ready) && ses.readyAt > len(ses.ready)/2 {
		ses.ready = append(ses.ready[:0], ses.ready[ses.readyAt:]...)
		clear(ses.ready[len(ses.ready):cap(ses.ready)])
		ses.readyAt = 0
	}
	x := ready{c: c, item: int32(i), tier: out.Tier, bytes: out.Bytes}
	if out.Err != nil || out.Data != nil || out.Sums != nil || out.Free != nil {
		more := *out // else each goes to the heap
		x.more = &more
	}
	ses.ready = append(ses.ready, x)
}

// takeLocked gives the reader what is ready, then what no one will load. REQUIRES: ses.mu.
func (ses *session) takeLocked(into []skep.Chunk) int {
	n := min(len(into), len(ses.ready)-ses.readyAt)
	for i := range n {
		into[i] = ses.ready[ses.readyAt+i].chunk()
	}
	clear(ses.ready[ses.readyAt : ses.readyAt+n])
	if ses.readyAt += n; ses.readyAt == len(ses.ready) {
		ses.ready, ses.readyAt = ses.ready[:0], 0
	}
	if n == 0 && !ses.ending {
		for _, c := range ses.chains {
			n += c.tellLocked(into[n:])
		}
		ses.untold -= n
	}
	return n
}

// tellLocked makes chunks of what is answered and was not told, as many as there is room for. REQUIRES: ses.mu.
func (c *chain) tellLocked(into []skep.Chunk) (n int) {
	for ; c.untold > 0 && n < len(into); c.tell++ {
		why := c.why
		switch c.items[c.tell] {
		case itemClaimed:
			why = errClaimed
		case itemBelow:
			why = c.below(c.tell)
		case itemGivenUp:
		default:
			continue
		}
		block, layers := c.Chunk(c.tell)
		into[n] = skep.Chunk{Chain: c.index, Block: block, Layers: layers, Err: why}
		c.items[c.tell] = itemMissed
		c.untold--
		n++
	}
	return n
}

// Next implements skep.Session.
func (ses *session) Next(ctx context.Context, into []skep.Chunk) (int, error) {
	if len(into) == 0 {
		return 0, skep.Invalidf("next", "room for chunks", 0, "at least 1")
	}
	for {
		ses.mu.Lock()
		if n := ses.takeLocked(into); n > 0 {
			ses.traced.Hand()
			more := len(ses.ready) > 0 || ses.untold > 0
			ses.mu.Unlock()
			if more {
				ses.signal()
			}
			return n, nil
		}
		if ses.ending {
			ses.mu.Unlock()
			return 0, errSessionClosed
		}
		if ses.left == 0 && ses.away == 0 {
			ses.deliveredLocked()
			ses.mu.Unlock()
			ses.signal() // for whoever asks again
			return 0, io.EOF
		}
		ses.mu.Unlock()
		select {
		case <-ses.landed:
		case <-ctx.Done():
			return 0, &skep.Error{Op: "restore", Kind: skep.Deadline, Err: ctx.Err()}
		}
	}
}

func (ses *session) signal() {
	select {
	case ses.landed <- struct{}{}:
	default:
	}
}
