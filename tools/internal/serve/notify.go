package serve

import (
	"context"
	"fmt"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// What the service manager is told, where there is one that asks for it (sd_notify(3)): that the server serves, that
// it reads its settings again, that it stops, and, where WatchdogSec= is set, that its store still answers.

// longer is how much more time is asked for while a cluster is being joined, the store opened or closed and calls under
// way are waited for, again and again: a rebuild takes as long as it takes.
const (
	longer      = time.Minute
	longerEvery = 20 * time.Second
)

func (s *server) tell(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		s.log.Warn("the service manager was not told", "what", state, "error", err)
	}
}

// tellLonger asks for more time until stop is called.
func (s *server) tellLonger() (stop func()) {
	ask := func() { s.tell(fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", longer.Microseconds())) }
	ask()
	tick, done, ended := time.NewTicker(longerEvery), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-tick.C:
				ask()
			case <-done:
				return
			}
		}
	}()
	return func() {
		tick.Stop()
		close(done)
		<-ended
	}
}

// watchdog tells that the store answers, three times in the interval that is asked for, until ctx ends.
// A store that has failed answers, too: it is /readyz that says so.
func (s *server) watchdog(ctx context.Context) {
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		s.log.Warn("no watchdog", "error", err)
	}
	if err != nil || interval == 0 {
		return
	}
	tick := time.NewTicker(interval / 3)
	defer tick.Stop()
	for {
		ask, cancel := context.WithTimeout(ctx, interval/3)
		_, err := s.st.Stats(ask)
		late := ask.Err() != nil
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case late:
			s.log.Error("the store does not answer; the service manager's watchdog is not told otherwise", "error", err)
		default:
			s.tell(daemon.SdNotifyWatchdog)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
