package store

import (
	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/internal/members"
	"github.com/skepkv/skep/store/internal/observe"
	"github.com/skepkv/skep/store/internal/space"
)

// wearOf asks the drives how worn they are.
func wearOf(drives *members.Set) func() []skep.WearStats {
	return func() (list []skep.WearStats) {
		for _, d := range drives.All() {
			list = append(list, askWear(d))
		}
		return list
	}
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
