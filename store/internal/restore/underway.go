package restore

import (
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/locks"
)

// sessions are the restores under way.
type sessions struct {
	mu     locks.Mutex[locks.Sessions]
	m      map[*session]struct{}
	closed bool
}

func (l *sessions) add(ses *session) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.m[ses] = struct{}{}
	return true
}

func (l *sessions) remove(ses *session) {
	l.mu.Lock()
	delete(l.m, ses)
	l.mu.Unlock()
}

func (l *sessions) all(closing bool) []*session {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = l.closed || closing
	out := make([]*session, 0, len(l.m))
	for ses := range l.m {
		out = append(out, ses)
	}
	return out
}

// watch turns reads that take too long into misses. Their memory stays theirs.
func (rs *Restorer) watch() {
	tick := time.NewTicker(rs.OpTimeout / 8)
	defer tick.Stop()
	for {
		select {
		case <-rs.Context.Done():
			return
		case <-tick.C:
		}
		expired := false
		for _, ses := range rs.sessions.all(false) {
			expired = ses.expire(time.Now().Add(-rs.OpTimeout)) || expired
		}
		if expired {
			rs.cancelQueued()
		}
	}
}

// expire answers chunks issued before t as misses, and says whether there were any.
func (ses *session) expire(t time.Time) (expired bool) {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	for ch := ses.oldest; ch != nil && ch.issued.Before(t); ch = ch.after {
		if c := ch.chain; c.items[ch.item] == itemAway {
			ch.cancelled.Store(true)
			expired = true
			ses.rs.Log.Warn("read not answered in time", "key", c.Keys[ch.at.Block].Short(), "after", ses.rs.OpTimeout)
			ses.answerLocked(c, ch.item, skep.Chunk{Err: &skep.Error{Op: "restore", Kind: skep.DeviceFailed, Field: "time", Value: ses.rs.OpTimeout}}, itemMissed)
		}
	}
	return expired
}
