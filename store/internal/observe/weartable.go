package observe

import (
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/locks"
)

// Wear is what drives last said of their wear. They are asked by Watch, never by a call. The zero value was never told.
type Wear struct {
	mu   locks.Mutex[locks.Wear]
	list []skep.WearStats
}

// wearEvery is how often drives are asked.
const wearEvery = 10 * time.Minute

// Of is what the i-th drive said.
func (w *Wear) Of(i int) skep.WearStats {
	w.mu.Lock()
	defer w.mu.Unlock()
	if i >= len(w.list) {
		return skep.WearStats{Why: "not asked"}
	}
	return w.list[i]
}

// Watch has the drives asked, now and every 10 minutes, until closing.
func (w *Wear) Watch(closing <-chan struct{}, ask func() []skep.WearStats) {
	tick := time.NewTicker(wearEvery)
	defer tick.Stop()
	for {
		list := ask()
		w.mu.Lock()
		w.list = list
		w.mu.Unlock()
		select {
		case <-closing:
			return
		case <-tick.C:
		}
	}
}
