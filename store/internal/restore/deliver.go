package restore

import (
	"context"
	"io"

	"github.com/skepkv/skep"
)

// readyLocked has out handed to the reader. REQUIRES: ses.mu.
func (ses *session) readyLocked(out skep.Chunk) {
	if len(ses.ready) == cap(ses.ready) && ses.readyAt > len(ses.ready)/2 {
		ses.ready = append(ses.ready[:0], ses.ready[ses.readyAt:]...)
		clear(ses.ready[len(ses.ready):cap(ses.ready)])
		ses.readyAt = 0
	}
	ses.ready = append(ses.ready, out)
}

// takeLocked gives the reader what is ready, then what no one will load. REQUIRES: ses.mu.
func (ses *session) takeLocked(into []skep.Chunk) int {
	n := copy(into, ses.ready[ses.readyAt:])
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
