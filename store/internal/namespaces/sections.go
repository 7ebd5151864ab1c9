package namespaces

import (
	"context"
	"maps"
	"slices"

	"github.com/skepkv/skep/store/internal/locks"
)

// Sections are stretches of work that go by what they find in a table. Who takes something out of the table waits for
// those that were open then and may have found it. One that begins meanwhile does not find it, and waits for nobody.
type Sections struct {
	mu   locks.Mutex[locks.Sections]
	open map[chan struct{}]struct{}
}

// Begin opens a section; end closes it.
func (x *Sections) Begin() (end func()) {
	ended := make(chan struct{})
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.open == nil {
		x.open = map[chan struct{}]struct{}{}
	}
	x.open[ended] = struct{}{}
	return func() {
		x.mu.Lock()
		delete(x.open, ended)
		x.mu.Unlock()
		close(ended)
	}
}

// Wait waits until all sections have ended that are open now.
func (x *Sections) Wait(ctx context.Context) error {
	x.mu.Lock()
	open := slices.Collect(maps.Keys(x.open))
	x.mu.Unlock()
	for _, ended := range open {
		select {
		case <-ended:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
