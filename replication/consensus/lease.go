package consensus

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication/clustermap"
)

// A node that keeps to a lease (clustermap.Node.Lease) asks who leads, again and again, to be heard. It counts the
// lease from before it asks, and who leads counts the silence from after it was asked, in full from when it began to
// lead. So a node does not serve any more when it is down by its silence, whatever was lost or late on the way.

// maxBackoff is how often the silence is doubled at most for a node that was down by itself before, flapWindow for how
// long it is remembered.
const (
	maxBackoff = 6
	flapWindow = time.Hour
)

// hearing is what who leads has heard of the others, since it leads.
type hearing struct {
	mu     sync.Mutex
	term   uint64                 // in which it leads and has carried out what earlier ones agreed on; 0: it does not lead
	since  time.Time              // it does
	at     map[uint64]time.Time   // when a node was heard
	ending map[uint64]bool        // it is being agreed that the node is down
	ended  map[uint64][]time.Time // when it was down by itself, in the last flapWindow
}

// begin forgets what was heard in other terms.
func (h *hearing) begin(term uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.term, h.since = term, time.Now()
	h.at, h.ending = map[uint64]time.Time{}, map[uint64]bool{}
	if h.ended == nil {
		h.ended = map[uint64][]time.Time{}
	}
}

// leads says whether the term is the one that is heard in.
func (h *hearing) leads(term uint64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.term == term
}

// hear notes that a node was heard in a term; false: it is not to be told so, because it is being agreed that it is
// down, or this node does not lead.
func (h *hearing) hear(term, id uint64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.term != term || term == 0 || h.ending[id] {
		return false
	}
	h.at[id] = time.Now()
	return true
}

// end has a node not be heard any more, where it was silent for that long: 0 where it was, and else for how much
// longer it has to be.
func (h *hearing) end(term, id uint64, silence time.Duration) (wait time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.term != term || term == 0 {
		return silence
	}
	from := h.at[id]
	if from.Before(h.since) {
		from = h.since
	}
	if wait = silence - time.Since(from); wait > 0 {
		return wait
	}
	h.ending[id] = true
	return 0
}

// down notes what came of it. Where that is not known the node is not heard, until the map has it down or another term
// begins.
func (h *hearing) down(id uint64, err error, byItself bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err == nil && byItself:
		h.ended[id] = append(h.ended[id], time.Now())
	case err == nil:
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress),
		errors.Is(err, raft.ErrEnqueueTimeout):
	case skep.KindOf(err) == skep.NotFound, skep.KindOf(err) == skep.Conflict, skep.KindOf(err) == skep.Invalid:
	default:
		return
	}
	delete(h.ending, id)
}

// backoff is the silence of a node that was down by itself before: each time within an hour doubles it, so that a node
// that comes and goes does not have blocks move all the time.
func (h *hearing) backoff(id uint64, silence time.Duration) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := h.ended[id]
	for len(list) > 0 && time.Since(list[0]) > flapWindow {
		list = list[1:]
	}
	h.ended[id] = list
	return silence << min(len(list), maxBackoff)
}

// leading begins to hear, where this node leads: it carries out first what was agreed on before.
func (m *Member) leading() (term uint64, ok bool) {
	term = m.raft.CurrentTerm()
	if m.hearing.leads(term) {
		return term, true
	}
	if err := m.settled(context.Background(), m.raft.Barrier(proposeTimeout)); err != nil || m.raft.CurrentTerm() != term {
		return term, false
	}
	m.hearing.begin(term)
	return term, true
}

// endSilent has nodes be down that were silent, where this node leads: one after the other, as each changes who else
// may be.
func (m *Member) endSilent() {
	term, ok := m.leading()
	if !ok {
		return
	}
	for n := m.silent(term); n != nil; n = m.silent(term) {
		c := clustermap.Command{Do: clustermap.SetState, Name: n.Name, ID: n.ID, State: clustermap.Down}
		b, err := c.Encode()
		if err == nil {
			f := m.raft.Apply(b, proposeTimeout)
			if err = m.settled(context.Background(), f); err == nil {
				err = f.Response().(outcome).err
			}
		}
		m.hearing.down(n.ID, err, true)
		if err != nil {
			m.log.Warn("it is not agreed that a silent node is down", "node", n.Name, "error", err)
			return // the next round tries it again
		}
		m.log.Warn("a node is down: it was silent", "node", n.Name)
	}
}

// silent is the first node of the map that is to be down by itself, and is not heard from here on; nil: none is.
func (m *Member) silent(term uint64) *clustermap.Node {
	now := m.Map()
	for i := range now.Nodes {
		n := &now.Nodes[i]
		silence := now.Ends(n)
		if silence == 0 || n.ID == m.o.ID || !now.MayEnd(n) {
			continue
		}
		if m.hearing.end(term, n.ID, m.hearing.backoff(n.ID, silence)) == 0 {
			return n
		}
	}
	return nil
}

// hears looks at a command before it is proposed to this node's raft: a node that returns is heard, and one that keeps
// to a lease is down for nobody before that has ended.
func (m *Member) hears(b []byte) (done func(error), r *reply) {
	done = func(error) {}
	c, err := clustermap.DecodeCommand(b)
	if err != nil || c.Do != clustermap.Return && c.Do != clustermap.SetState {
		return done, nil
	}
	now := m.Map()
	if now == nil {
		return done, nil
	}
	n, err := now.Node(c.Name)
	if err != nil || c.ID != 0 && c.ID != n.ID {
		return done, nil
	}
	term := m.raft.CurrentTerm()
	switch {
	case c.Do == clustermap.Return:
		if n.State == clustermap.Down {
			m.hearing.down(n.ID, nil, false)
		}
		if !m.hearing.hear(term, n.ID) {
			return done, &reply{Elsewhere: true}
		}
	case c.State == clustermap.Down && n.State != clustermap.Down && n.Lease != 0:
		if m.raft.State() != raft.Leader || !m.hearing.leads(term) {
			return done, &reply{Elsewhere: true} // who leads knows how long the node was silent
		}
		silence := time.Duration(max(n.Lease, now.Silence.After)) * time.Second
		if wait := m.hearing.end(term, n.ID, silence); wait > 0 {
			return done, &reply{Epoch: now.Epoch, Error: failedOf(&skep.Error{Op: "propose", Kind: skep.Conflict,
				Field: "state of node " + n.Name, Value: string(clustermap.Down), RetryAfter: wait,
				Limit: "up or out for another " + wait.Round(time.Second).String() + ": it may serve until it was silent for " +
					silence.String()})}
		}
		return func(err error) { m.hearing.down(n.ID, err, false) }, nil
	}
	return done, nil
}

// Renew has this node be heard by who leads. The caller's lease counts from before the call.
//
// Errors: those of LeftBehind, Behind (the nodes agree that it is down: it has to Return), NotFound (it is none of the
// map), Unavailable (most voters do not answer, or not before ctx ends).
func (m *Member) Renew(ctx context.Context) error {
	if err := m.LeftBehind(); err != nil {
		return err
	}
	at, id := m.raft.LeaderWithID()
	r := reply{Elsewhere: true}
	var err error
	switch {
	case id == "":
	case id == serverID(m.o.ID):
		r = m.renew(ctx, m.o.ID)
	default:
		if to, err := m.ServerAddr(id); err == nil {
			at = to
		}
		to, peer, bad := splitAddress(at)
		if bad == nil {
			r, err = m.peers.call(ctx, to, peer, request{Renew: m.o.ID})
		}
	}
	switch {
	case err == nil && r.Error != nil:
		return r.Error.err()
	case err == nil && !r.Elsewhere && r.Renewed:
		return nil
	}
	return &skep.Error{Op: "renew", Kind: skep.Unavailable, Field: "leader", Value: string(id),
		Limit: "one that most voters answer", Err: err}
}

// renew hears a node, where this one leads.
func (m *Member) renew(ctx context.Context, id uint64) reply {
	elsewhere := reply{Elsewhere: true}
	if err := m.LeftBehind(); err != nil {
		return reply{Error: failedOf(err)}
	}
	term := m.raft.CurrentTerm()
	unknown := reply{Epoch: epochOf(m.Map()), Error: failedOf(&skep.Error{Op: "renew", Kind: skep.NotFound, Field: "node",
		Value: id, Limit: "a node of the map"})}
	switch {
	case m.raft.State() != raft.Leader || !m.hearing.leads(term):
		return elsewhere
	case m.Map().ByID(id) == nil:
		return unknown
	case !m.hearing.hear(term, id):
		return elsewhere
	}
	if err := m.settled(ctx, m.raft.VerifyLeader()); err != nil || m.raft.CurrentTerm() != term {
		return elsewhere
	}
	for agreed := m.raft.CommitIndex(); m.raft.AppliedIndex() < agreed; {
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return elsewhere
		case <-m.closing:
			return elsewhere
		}
	}
	now := m.Map()
	switch n := now.ByID(id); {
	case n == nil:
		return unknown
	case n.State == clustermap.Down:
		return reply{Epoch: now.Epoch, Error: failedOf(&skep.Error{Op: "renew", Kind: skep.Behind, Field: "node",
			Value: n.Name, Limit: "one that is not down"})}
	default:
		return reply{Epoch: now.Epoch, Renewed: true}
	}
}
