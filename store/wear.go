package store

import (
	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/observe"
	"github.com/skepkv/skep/store/internal/space"
)

// watchWear asks the drives how worn they are, until the store closes.
func (s *Store) watchWear() {
	s.wear.Watch(s.closing, func() (list []skep.WearStats) {
		for _, d := range s.members.All() {
			list = append(list, askWear(d))
		}
		return list
	})
}

func askWear(d *space.Drive) skep.WearStats {
	if d.Removed.Load() {
		return skep.WearStats{Why: "removed"}
	}
	if info := d.Dev.Info(); info.Simulated || info.Backend == "memory" {
		return skep.WearStats{Why: "simulated"}
	}
	return observe.AskWear(d.Path)
}
