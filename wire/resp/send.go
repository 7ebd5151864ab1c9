package resp

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/skepkv/skep"
)

// errCut ends a connection in the middle of a reply whose rest cannot be sent: a piece
// of a value was damaged or lost after the value's length was told.
var errCut = errors.New("value could not be sent whole")

// sendWindow is how much of a reply at most is restored ahead of what is sent, in one session;
// two sessions at a time.
const sendWindow = 16 << 20

// maxPieces is of how many pieces the values are that are planned at once: those of as many of the largest
// values as commands are answered together. What is planned of a reply takes some 60 bytes each.
const maxPieces = maxRun * MaxValueBytes / pieceBytes

// MinSendBytes is the least Options.SendBytes.
const MinSendBytes = sendWindow

// outgoing is one value of a run of GETs.
type outgoing struct {
	key   []byte
	h     *head
	err   error // there is no value; errNone is a plain miss
	lease skep.LeaseID
	read  bool // counted in database.reading
}

// get replies to a run of GETs, or to one MGET (array): values through as few sessions as
// the window allows, so that a pipelined batch is read like a chain. At most maxRun keys are
// looked up, leased and planned at once: what a reply holds does not grow with the keys of an MGET.
func (c *conn) get(ctx context.Context, keys [][]byte, array bool) error {
	db, err := c.database()
	if err != nil {
		return c.replyAll(err, len(keys), array)
	}
	head := 0
	if array {
		head = len(keys)
	}
	for some := range slices.Chunk(keys, maxRun) {
		refused, err := c.getSome(ctx, db, some, head, array)
		if refused != nil {
			return c.replyAll(refused, len(keys), array)
		}
		if err != nil {
			return err
		}
		head = 0
	}
	return nil
}

// getSome replies to some of get's keys, and begins with the head of an array of so many when that is
// not 0. What is refused has no part of its reply sent.
func (c *conn) getSome(ctx context.Context, db *database, keys [][]byte, head int, array bool) (refused, err error) {
	op, cancel := context.WithTimeout(ctx, c.s.o.OpTimeout)
	end := c.span(op, "lookup")
	run := c.find(op, db, keys)
	end()
	cancel()
	defer c.letGo(db, run)
	for i := range run {
		c.count(&run[i])
	}
	if refused := c.admit(run, head, array); refused != nil {
		return refused, nil
	}
	if head > 0 {
		c.array(head)
	}
	all := c.pieces(ctx, db, run)
	defer all.close()
	for i := range run {
		o := &run[i]
		if o.err != nil || o.h.piece == 0 {
			if err := c.small(o); err != nil {
				return nil, err
			}
			continue
		}
		if err := c.large(ctx, all, i); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// find looks the run's keys up, whole and under a lease.
func (c *conn) find(ctx context.Context, db *database, keys [][]byte) []outgoing {
	run := make([]outgoing, len(keys))
	heads, errs := db.headsOf(ctx, keys, true)
	for i := range run {
		o := &run[i]
		o.key, o.h, o.err = keys[i], heads[i], errs[i]
		for try := 0; o.err == nil && o.h.piece != 0; try++ {
			if o.read = db.reading.begin(o.h.id); o.read {
				found, err := db.store.Lookup(skep.Continued(ctx), &skep.LookupRequest{Scope: skep.Scope{Namespace: db.data},
					Keys: o.h.pieceKeys(0, o.h.pieces()), Lease: time.Minute})
				if err != nil {
					o.err = err
					break
				}
				o.lease = found.Lease.ID
				if found.Blocks == o.h.pieces() {
					break
				}
			}
			// Replaced since its head was read, or evicted: the head as it is now says which.
			c.letGoOf(db, o)
			now, err := db.head(skep.Uncounted(ctx), keys[i])
			if err == nil && (now.id == o.h.id || try > 8) {
				err = errNone
			}
			if o.err = err; err == nil { // else o.h says what is missed
				o.h = now
			}
		}
	}
	return run
}

func (c *conn) count(o *outgoing) {
	st := &c.tenant.stats
	switch {
	case o.err == nil:
		st.hits.Add(1)
	default:
		st.misses.Add(1)
	}
}

func (c *conn) letGo(db *database, run []outgoing) {
	for i := range run {
		c.letGoOf(db, &run[i])
	}
}

// letGoOf ends what find began.
func (c *conn) letGoOf(db *database, o *outgoing) {
	if o.lease != 0 {
		_ = db.store.Release(context.WithoutCancel(c.ctx), o.lease) // it ends by itself
		o.lease = 0
	}
	if o.read {
		o.read = false
		db.letGo(o.h.id)
	}
}

// admit charges the tenant's rate for what will be sent. A refusal of a GET is its
// reply; of the first keys of an MGET (head) it is the reply to all, and who has got those gets the rest.
func (c *conn) admit(run []outgoing, head int, array bool) error {
	limits := c.identity.Limits()
	var sum int64
	for i := range run {
		if run[i].err != nil {
			continue
		}
		if array {
			sum += run[i].h.size
		} else if wait, ok := limits.Admit(0, run[i].h.size); !ok {
			run[i].err = &tryAgain{wait, "over the tenant's rate"}
		}
	}
	if array && head == 0 {
		limits.Charge(sum)
	} else if wait, ok := limits.Admit(0, sum); !ok {
		return &tryAgain{wait, "over the tenant's rate"}
	}
	return nil
}

func (c *conn) replyAll(err error, n int, array bool) error {
	if array {
		n = 1
	}
	for range n {
		if err := c.fail(err); err != nil {
			return err
		}
	}
	return nil
}

// small replies with what is at hand: a value out of a head, a miss, an error.
func (c *conn) small(o *outgoing) error {
	var wait *tryAgain
	switch {
	case o.err == nil:
		c.expects(o.key, o.h.size)
		c.bulk(o.h.inline)
		return c.flushIfLarge()
	case !c.lockstep && (errors.As(o.err, &wait) || skep.KindOf(o.err) == skep.Overloaded):
		return c.fail(o.err)
	case skep.KindOf(o.err) == skep.Damaged:
		c.s.o.Log.Error("damaged value, answered as a miss", "tenant", c.tenant.name, "error", o.err)
	case !isMiss(o.err):
		c.s.o.Log.Warn("get failed, answered as a miss", "tenant", c.tenant.name, "error", o.err)
	}
	if c.lockstep {
		return c.missInStep(o)
	}
	c.null()
	return c.flushIfLarge()
}

// large sends value v of the run.
func (c *conn) large(ctx context.Context, all *pieces, v int) error {
	o := &all.run[v]
	sent := false
	for p := range o.h.pieces() {
		ch, err := all.take(v, p)
		if err != nil {
			o.err = err
			if sent {
				c.s.stats.cut.Add(1)
				c.s.o.Log.Error("value cut off", "tenant", c.tenant.name, "piece", p, "of", o.h.pieces(), "error", err)
				return errCut
			}
			return c.small(o)
		}
		if !sent {
			c.out = append(strconv.AppendInt(append(c.out, '$'), o.h.size, 10), '\r', '\n')
			c.expects(o.key, o.h.size)
			sent = true
		}
		data := ch.Data
		if p == o.h.pieces()-1 {
			data = append(slices.Clip(data), crlf)
		}
		end := c.span(ctx, "send")
		err = c.write(data)
		end()
		ch.Release()
		if err != nil {
			return err
		}
	}
	c.bytes += o.h.size
	return nil
}

var crlf = []byte("\r\n")

// write sends what is queued and then data, in one call where the connection can.
func (c *conn) write(data [][]byte) error {
	bufs := make(net.Buffers, 0, len(data)+1)
	if len(c.out) > 0 {
		bufs = append(bufs, c.out)
	}
	bufs = append(bufs, data...)
	if err := c.stuck.begin(c.raw, c.until(c.s.o.IOTimeout), len(data) > 0); err != nil {
		return err
	}
	defer c.stuck.end()
	if len(data) > 0 {
		c.under.Hold()
	}
	_, err := bufs.WriteTo(c.raw) // writev where the connection has it
	err = errors.Join(err, c.under.Flush())
	c.out = c.out[:0]
	if cap(c.out) > 256<<10 {
		c.out = nil
	}
	return err
}
