package store

import (
	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/observe"
)

// watchWear asks the drives how worn they are, until the store closes.
func (s *Store) watchWear() {
	s.wear.Watch(s.closing, func() (list []skep.WearStats) {
		for _, d := range s.allDrives() {
			list = append(list, askWear(d))
		}
		return list
	})
}

func askWear(d *drive) skep.WearStats {
	if d.removed.Load() {
		return skep.WearStats{Why: "removed"}
	}
	if info := d.dev.Info(); info.Simulated || info.Backend == "memory" {
		return skep.WearStats{Why: "simulated"}
	}
	return observe.AskWear(d.path)
}
