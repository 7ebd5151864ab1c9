package consensus

import (
	"sync"

	"github.com/skepkv/skep/replication/clustermap"
)

// news wakes whoever waits for something to change. The zero value is good.
type news struct {
	mu sync.Mutex
	c  chan struct{}
}

// next is closed by the next tell.
func (n *news) next() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.c == nil {
		n.c = make(chan struct{})
	}
	return n.c
}

func (n *news) tell() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.c != nil {
		close(n.c)
		n.c = nil
	}
}

// watcher is one caller of Watch.
type watcher struct {
	mu      sync.Mutex
	f       func(*clustermap.Map)
	seen    *clustermap.Map
	stopped bool
}

// look calls the watcher where the map is another than it has seen.
func (w *watcher) look(m *Member) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now := m.Map(); now != nil && now != w.seen && !w.stopped {
		w.seen = now
		w.f(now)
	}
}

// Watch implements Registry.
func (m *Member) Watch(f func(*clustermap.Map)) (stop func()) {
	w := &watcher{f: f}
	m.mu.Lock()
	m.watchers[w] = true
	m.mu.Unlock()
	w.look(m)
	return func() {
		m.mu.Lock()
		delete(m.watchers, w)
		m.mu.Unlock()
		w.mu.Lock()
		defer w.mu.Unlock()
		w.stopped = true
	}
}

// tell calls the watchers until the member is closed.
func (m *Member) tell() {
	for {
		news := m.news.next()
		m.mu.Lock()
		var all []*watcher
		for w := range m.watchers {
			all = append(all, w)
		}
		m.mu.Unlock()
		for _, w := range all {
			w.look(m)
		}
		select {
		case <-news:
		case <-m.closing:
			return
		}
	}
}
