package gpu

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/skepkv/skep"
)

// How long a session behind that did not let go is left alone before it is closed again.
const pauseBetweenCloses = 50 * time.Millisecond

// unreleased is sessions behind that did not let go of memory in time: each is closed again until it has.
type unreleased struct {
	stop chan struct{} // closed: each is closed once more, and no more
	wg   sync.WaitGroup

	mu   sync.Mutex
	over bool
}

// again closes a session, each time for at most timeout, until it has let go of its memory, and then calls free. Where
// it has not when the Store is closed, free is not called: something may write there yet. One that comes when the Store
// was closed is closed once more, too, and waited for.
func (u *unreleased) again(ses skep.Session, timeout time.Duration, free func()) {
	u.mu.Lock()
	over := u.over
	if !over {
		u.wg.Add(1)
	}
	u.mu.Unlock()
	if over {
		once(ses, timeout, free)
		return
	}
	go func() {
		defer u.wg.Done()
		for last := false; !once(ses, timeout, free) && !last; {
			select {
			case <-u.stop:
				last = true
			case <-time.After(pauseBetweenCloses):
			}
		}
	}()
}

// once closes a session and, where it has let go of its memory, calls free.
func once(ses skep.Session, timeout time.Duration, free func()) bool {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if errors.Is(ses.Close(ctx), skep.NotReleased) {
		return false
	}
	free()
	return true
}

// end waits for what is being closed: each once more, for at most the timeout it was given.
func (u *unreleased) end() {
	u.mu.Lock()
	if !u.over {
		u.over = true
		close(u.stop)
	}
	u.mu.Unlock()
	u.wg.Wait()
}
