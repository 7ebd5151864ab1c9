package serve

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/skepkv/skep"
)

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
	for _, d := range st.Devices {
		if state, _, _ := strings.Cut(d.State, ":"); state == "fenced" || state == "dead" {
			list = append(list, fmt.Sprintf("device %d: %s", d.Index, state))
		}
	}
	return list
}
