package serve

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/httpapi"
)

// jobs steers the store's background work.
type jobs struct {
	st   skep.Store
	log  *slog.Logger
	ctx  context.Context // ends with close
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu   sync.Mutex
	list []*job
}

// job is one kind of work a store offers.
type job struct {
	name, about string
	run         func(ctx context.Context, j *job) error
	// restarts says that pausing ends the run, so that it holds nothing, and resuming
	// begins another, which goes on with what is left.
	restarts bool

	// Guarded by jobs.mu.
	state    string // idle, running, paused, failed
	detail   string
	progress float64
	cancel   context.CancelFunc
	resume   chan struct{} // closed when a paused job may go on; nil: not paused
	again    bool          // resumed before the run that was paused has ended
}

func newJobs(st skep.Store, log *slog.Logger) *jobs {
	js := &jobs{st: st, log: log}
	js.ctx, js.stop = context.WithCancel(context.Background())
	js.list = jobsOf(st, js)
	for _, j := range js.list {
		j.state, j.progress = "idle", -1
	}
	return js
}

// offer adds a job to those of the store.
func (js *jobs) offer(j *job) {
	js.mu.Lock()
	defer js.mu.Unlock()
	j.state, j.progress = "idle", -1
	js.list = append(js.list, j)
}

// close stops what runs and waits for it.
func (js *jobs) close() {
	js.mu.Lock()
	js.stop() // nothing begins from here on
	js.mu.Unlock()
	js.wg.Wait()
}

// List implements httpapi.Jobs. What the store does by itself is listed too, without
// actions.
func (js *jobs) List(ctx context.Context) ([]httpapi.Job, error) {
	st, err := js.st.Stats(ctx)
	if err != nil {
		return nil, err
	}
	js.mu.Lock()
	defer js.mu.Unlock()
	out := []httpapi.Job{}
	ours := map[string]bool{}
	for _, j := range js.list {
		ours[j.name] = j.state != "idle" || ours[j.name]
		out = append(out, httpapi.Job{Name: j.name, About: j.about, State: j.state, Detail: j.detail, Progress: j.progress, Actions: j.actions()})
	}
	for _, w := range st.Work {
		if ours[w.Name] {
			continue
		}
		share := -1.0
		if w.Total > 0 {
			share = min(float64(w.Done)/float64(w.Total), 1)
		}
		out = append(out, httpapi.Job{Name: w.Name, About: "of the store's own accord", State: "running", Progress: share,
			Detail: fmt.Sprintf("%d %s since %s", w.Done, w.Unit, w.Since.Format(time.TimeOnly)), Actions: []string{}})
	}
	return out, nil
}

// actions are what can be done now. REQUIRES: jobs.mu.
func (j *job) actions() []string {
	switch j.state {
	case "running":
		return []string{"pause", "stop"}
	case "paused":
		return []string{"resume", "stop"}
	}
	return []string{"start"}
}

// Do implements httpapi.Jobs.
func (js *jobs) Do(_ context.Context, name, action string) error {
	js.mu.Lock()
	defer js.mu.Unlock()
	if js.ctx.Err() != nil {
		return &skep.Error{Op: "steer", Kind: skep.Closed, Field: "job", Value: name}
	}
	for _, j := range js.list {
		if j.name != name {
			continue
		}
		for _, a := range j.actions() {
			if a == action {
				js.apply(j, action)
				return nil
			}
		}
		return skep.Invalidf("steer", "action of "+name, action, j.actions())
	}
	return &skep.Error{Op: "steer", Kind: skep.NotFound, Field: "job", Value: name}
}

// apply does what actions allowed. REQUIRES: jobs.mu.
func (js *jobs) apply(j *job, action string) {
	switch action {
	case "start":
		js.begin(j)
	case "pause":
		j.state, j.resume, j.again = "paused", make(chan struct{}), false // whatever was resumed before it
		if j.restarts {
			j.cancel()
		}
	case "resume":
		if j.restarts {
			if j.again = j.cancel != nil; !j.again { // else when it has seen that it was paused
				js.begin(j)
			}
			j.state = "running"
			return
		}
		close(j.resume)
		j.state, j.resume = "running", nil
	case "stop":
		if j.cancel == nil { // it was paused, and has ended
			j.state, j.detail, j.resume = "idle", "stopped", nil
			return
		}
		j.state, j.again = "running", false // until it has seen that it is to stop
		j.cancel()
	}
}

// begin runs a job. REQUIRES: jobs.mu.
func (js *jobs) begin(j *job) {
	ctx, cancel := context.WithCancel(js.ctx)
	j.state, j.detail, j.progress, j.cancel, j.resume, j.again = "running", "", -1, cancel, nil, false
	js.wg.Go(func() {
		defer cancel()
		err := j.run(ctx, j)
		js.mu.Lock()
		defer js.mu.Unlock()
		j.cancel = nil
		switch {
		case j.again:
			js.begin(j)
			return
		case j.state == "paused" && j.restarts && ctx.Err() != nil:
			return // until it is resumed
		}
		j.state, j.resume = "idle", nil
		switch {
		case ctx.Err() != nil:
			j.detail = "stopped"
		case err != nil:
			j.state, j.detail = "failed", err.Error()
			js.log.Error("background work", "job", j.name, "error", err)
		}
	})
}

// step is called by a running job between steps: it tells how far it is, waits while
// it is paused, and ends with ctx.
func (js *jobs) step(ctx context.Context, j *job, progress float64, detail string) error {
	js.mu.Lock()
	j.progress, j.detail = progress, detail
	wait := j.resume
	js.mu.Unlock()
	if wait != nil {
		select {
		case <-wait:
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}
