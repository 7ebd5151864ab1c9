package gpu

import "sync"

// residents are the blocks in GPU memory by name. They change under the tier's lock only, so that who holds it
// may walk them. Whether a block is there is asked without it: a look-up does not wait for copies.
type residents struct {
	mu sync.RWMutex
	m  map[blockID]*entry
}

func (r *residents) of(id blockID) *entry {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.m[id]
}

// leading says how many leading ids are there.
func (r *residents) leading(ids []blockID) int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for i, id := range ids {
		if r.m[id] == nil {
			return i
		}
	}
	return len(ids)
}

func (r *residents) set(e *entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.m[e.id] = e
}

func (r *residents) forget(e *entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.m, e.id)
}

func (r *residents) clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.m = map[blockID]*entry{}
}
