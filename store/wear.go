package store

import (
	"github.com/skepkv/skep/store/internal/locks"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/observe"
)

// wearTable is what the drives last said of their wear. They are asked at open and then
// every now and then, never by a call.
type wearTable struct {
	mu   locks.Mutex[locks.Wear]
	list []skep.WearStats
}

// wearEvery is how often drives are asked.
const wearEvery = 10 * time.Minute

func (w *wearTable) of(i int) skep.WearStats {
	w.mu.Lock()
	defer w.mu.Unlock()
	if i >= len(w.list) {
		return skep.WearStats{Why: "not asked"}
	}
	return w.list[i]
}

// watchWear asks the drives until the store closes.
func (s *Store) watchWear() {
	tick := time.NewTicker(wearEvery)
	defer tick.Stop()
	for {
		drives := s.allDrives()
		list := make([]skep.WearStats, len(drives))
		for i, d := range drives {
			list[i] = s.askWear(d)
		}
		s.wear.mu.Lock()
		s.wear.list = list
		s.wear.mu.Unlock()
		select {
		case <-s.closing:
			return
		case <-tick.C:
		}
	}
}

func (s *Store) askWear(d *drive) skep.WearStats {
	if d.removed.Load() {
		return skep.WearStats{Why: "removed"}
	}
	if info := d.dev.Info(); info.Simulated || info.Backend == "memory" {
		return skep.WearStats{Why: "simulated"}
	}
	return observe.AskWear(d.path)
}
