package serve

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/skepkv/skep"
)

// ready says why this server should get no traffic.
func (s *server) ready() error {
	if s.draining.Load() {
		return errors.New("draining")
	}
	if s.fence != nil && !s.fence.Open() {
		return errors.New("this node has yet to hear from most voters what it missed")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	st, err := s.st.Stats(ctx)
	if err != nil {
		return err
	}
	if st.State != "ok" {
		return errors.New(st.State)
	}
	if bad := unwell(&st); len(bad) == len(st.Devices) && len(bad) > 0 {
		return noneWell(bad)
	}
	return nil
}

func noneWell(bad []string) error {
	return errors.New("no device is well: " + strings.Join(bad, ", "))
}

// unwell is which devices are fenced or dead: they take nothing new, and what they hold may be
// misses. Why is in the log and for who may ask for statistics: it names paths.
func (s *server) unwell() []string {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	st, err := s.st.Stats(ctx)
	if err != nil {
		return nil
	}
	return unwell(&st)
}

func unwell(st *skep.Stats) (list []string) {
	for i := range st.Devices {
		if d := &st.Devices[i]; ill(d) {
			state, _, _ := strings.Cut(d.State, ":")
			list = append(list, fmt.Sprintf("device %d: %s", d.Index, state))
		}
	}
	return list
}

// ill says whether a device is fenced or dead.
func ill(d *skep.DeviceStats) bool {
	state, _, _ := strings.Cut(d.State, ":")
	return state == "fenced" || state == "dead"
}
