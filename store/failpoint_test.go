//go:build failpoints

package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/failpoint"
)

// TestFailpoints makes every look at an error on the durable path find one, where some
// scenario comes by: once the first time, and, with SKEP_FAILPOINT_PASSES above 1, in the
// middle of that scenario's passes, and so on. Whatever fails: nothing panics, no call hangs,
// no wrong bytes are seen, and a store opened afterwards has everything that was acknowledged
// and nothing that was deleted. `make errpaths` runs it; SKEP_FAILPOINTS is the directory that
// `go run ./tools/errpaths -failpoints` has written, SKEP_FAILPOINT_ONLY a part of the names
// (file:line func) of those that are run.
//
// A failpoint is armed for a whole process, and a failed catalog leaves goroutines behind on
// purpose: so runs are made in processes of their own, some to each.
func TestFailpoints(t *testing.T) {
	t.Parallel()
	dir := os.Getenv("SKEP_FAILPOINTS")
	if dir == "" {
		t.Skip("SKEP_FAILPOINTS is not set: make errpaths")
	}
	list, err := failpoint.Load(filepath.Join(dir, "points.json"))
	require.NoError(t, err)
	if job := os.Getenv("SKEP_FAILPOINT_JOB"); job != "" {
		failChild(t, job, list)
		return
	}
	f := &failCampaign{T: t, dir: dir, list: list, seed: testSeed(t), fired: map[int]bool{}, passes: map[string][]int64{}, mended: map[string]int{}}
	f.survey()
	f.each(f.plan())
	f.report()
}

// failJob is what one process does.
type failJob struct {
	Scenario string
	Seed     uint64
	Runs     []failPlan // none: one with nothing armed
	Out      string     // where it writes failResult, and a coverage profile
}

// failPlan is one run: which failpoint, at which of its passes, with which of its errors.
type failPlan struct {
	Point int
	Pass  int64
	Err   int
}

// failResult is what came of a job so far.
type failResult struct {
	Done   int
	Fired  []int
	Passes []int64        // of every failpoint, when nothing is armed
	Mended map[string]int // what verify found and a scrub mended
}

type failCampaign struct {
	*testing.T
	dir    string
	list   failpoint.List
	seed   uint64
	mu     sync.Mutex
	fired  map[int]bool
	passes map[string][]int64 // by scenario
	mended map[string]int
	jobs   int
	runs   int
}

func (f *failCampaign) name(n int) string {
	p := f.list.Points[n]
	return fmt.Sprintf("%s:%d %s: %s (%s)", p.File, p.Line, p.Func, p.Text, p.Of)
}

// survey runs every scenario with nothing armed and counts passes.
func (f *failCampaign) survey() {
	var jobs []failJob
	for _, s := range failScenarios {
		jobs = append(jobs, failJob{Scenario: s.name})
	}
	f.each(jobs)
}

// plan says what is run: each failpoint in the scenario that passes it least often, but not
// just by chance, and in others in later rounds.
func (f *failCampaign) plan() (jobs []failJob) {
	const atOnce = 25
	only := os.Getenv("SKEP_FAILPOINT_ONLY")
	by := map[string][]failPlan{}
	for round := range testNumber(f.T, "SKEP_FAILPOINT_PASSES", 1) {
		for n := range f.list.Points {
			var where []string
			for name, passes := range f.passes {
				if passes[n] > 0 {
					where = append(where, name)
				}
			}
			slices.SortFunc(where, func(a, b string) int {
				if d := scenarioOrder(a) - scenarioOrder(b); d != 0 {
					return d
				}
				return strings.Compare(a, b)
			})
			if len(where) == 0 || !strings.Contains(f.name(n), only) {
				continue
			}
			name := where[round%len(where)]
			pass := 1 + f.passes[name][n]*int64(round)/int64(round+1)
			by[name] = append(by[name], failPlan{Point: n, Pass: min(pass, f.passes[name][n]), Err: round})
		}
	}
	for _, s := range failScenarios {
		for part := range slices.Chunk(by[s.name], atOnce) {
			jobs = append(jobs, failJob{Scenario: s.name, Runs: part})
		}
	}
	return jobs
}

func scenarioOrder(name string) int {
	return slices.IndexFunc(failScenarios, func(s failScenario) bool { return s.name == name })
}

// each does jobs, as many at a time as there are processors.
func (f *failCampaign) each(jobs []failJob) {
	next := make(chan failJob)
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for j := range next {
				f.do(j)
			}
		})
	}
	for _, j := range jobs {
		f.jobs++
		j.Seed, j.Out = f.seed, filepath.Join(f.dir, fmt.Sprintf("job-%d", f.jobs))
		next <- j
	}
	close(next)
	wg.Wait()
}

// do runs a job in processes: one, and another after each run that fails.
func (f *failCampaign) do(j failJob) {
	for tries := 0; ; tries++ {
		out, res, err := f.process(j, tries)
		f.mu.Lock()
		f.runs += res.Done
		for _, n := range res.Fired {
			f.fired[n] = true
		}
		for what, n := range res.Mended {
			f.mended[what] += n
		}
		if len(j.Runs) == 0 && err == nil {
			f.passes[j.Scenario] = res.Passes
		}
		f.mu.Unlock()
		if err == nil {
			return
		}
		if len(j.Runs) == 0 {
			f.Errorf("scenario %s with nothing armed: %v\n%s", j.Scenario, err, tail(out))
			return
		}
		f.Errorf("scenario %s, %s, pass %d, %v: %v\n%s", j.Scenario, f.name(j.Runs[res.Done].Point), j.Runs[res.Done].Pass,
			failErrors(f.list.Points[j.Runs[res.Done].Point], j.Runs[res.Done].Err), err, tail(out))
		if j.Runs = j.Runs[res.Done+1:]; len(j.Runs) == 0 {
			return
		}
	}
}

func tail(out []byte) []byte {
	const most = 24 << 10
	if i := strings.Index(string(out), "\npanic: "); i >= 0 {
		return out[i:min(len(out), i+most)]
	}
	return out[max(0, len(out)-most):]
}

func (f *failCampaign) process(j failJob, try int) ([]byte, failResult, error) {
	j.Out = fmt.Sprintf("%s-%d", j.Out, try)
	b, err := json.Marshal(j)
	if err != nil {
		return nil, failResult{}, err
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestFailpoints$", "-test.v", "-test.timeout=20m")
	cmd.Env = append(os.Environ(), aloneEnv+"=1", "SKEP_FAILPOINT_JOB="+string(b))
	out, err := cmd.CombinedOutput()
	var res failResult
	if text, e := os.ReadFile(j.Out + ".json"); e == nil {
		err = errors.Join(err, json.Unmarshal(text, &res))
	}
	return out, res, err
}

// report says what was not passed, and what was and did not fire.
func (f *failCampaign) report() {
	armed, fired := 0, 0
	for n := range f.list.Points {
		if !strings.Contains(f.name(n), os.Getenv("SKEP_FAILPOINT_ONLY")) {
			continue
		}
		passed := slices.ContainsFunc(failScenarios, func(s failScenario) bool { return f.passes[s.name] != nil && f.passes[s.name][n] > 0 })
		switch {
		case f.fired[n]:
			armed, fired = armed+1, fired+1
		case passed:
			armed++
			f.Logf("did not fire: %s", f.name(n))
		default:
			f.Logf("no scenario comes by: %s", f.name(n))
		}
	}
	for what, n := range f.mended {
		f.Logf("found by verify and mended by a scrub, %d times: %s", n, what)
	}
	f.Logf("%d failpoints, %d passed by a scenario, %d fired; %d runs", len(f.list.Points), armed, fired, f.runs)
}

// failChild does a job.
func failChild(t *testing.T, text string, list failpoint.List) {
	var j failJob
	require.NoError(t, json.Unmarshal([]byte(text), &j))
	s := failScenarios[scenarioOrder(j.Scenario)]
	res := failResult{Mended: map[string]int{}}
	save := func() {
		b, err := json.Marshal(res)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(j.Out+".json", b, 0o644))
		require.NoError(t, failpoint.Save(j.Out+".cover", "github.com/skepkv/skep/", list))
	}
	if len(j.Runs) == 0 {
		r := &failRun{T: t, seed: j.Seed, count: len(list.Points), scrubbed: res.Mended}
		withinTime(t, func() { s.run(r) })
		res.Passes = r.passes
	}
	for _, p := range j.Runs {
		save()
		began := time.Now()
		r := &failRun{T: t, seed: j.Seed, point: list.Points[p.Point], number: p.Point, pass: p.Pass, err: failErrors(list.Points[p.Point], p.Err), armed: true,
			scrubbed: res.Mended}
		withinTime(t, func() { s.run(r) })
		if r.fired {
			res.Fired = append(res.Fired, p.Point)
		}
		res.Done++
		t.Logf("%s:%d %s pass %d, fired %v, %v", r.point.File, r.point.Line, r.point.Func, p.Pass, r.fired, time.Since(began))
	}
	save()
}

// withinTime panics, with all goroutines' stacks, when f hangs.
func withinTime(t *testing.T, f func()) {
	hung := time.AfterFunc(hangs, func() {
		buf := make([]byte, 1<<20)
		panic("a run hangs\n" + string(buf[:runtime.Stack(buf, true)]))
	})
	defer hung.Stop()
	f()
	if t.Failed() {
		t.FailNow()
	}
}

// Which calls of the engine give errors of the catalog, and which of drives.
var (
	ofCatalog = regexp.MustCompile(`catalog\.|ld\.Catalog\.|save(Seq|Names|Next)\(|load\.(Namespaces|Groups|Blocks|Agree)\(|\.WriteTable|\.Ingest|b\.(flush|remove)\(|\.older\(|\.record\(`)
	ofDrives  = regexp.MustCompile(`device\.|\.Wait(Or)?\(|flushDrives|readVerified|VerifyRow|[wW]rite(Header|Freed|Superblocks?)|write\(ctx|[rR]eadSuperblocks?|Grow\(|dev\.Close`)
)

// failErrors is the i-th of the errors that a failpoint may get. Those of the catalog are
// such that whatever was asked for may have happened all the same.
func failErrors(p failpoint.Point, i int) error {
	failed := &skep.Error{Op: "injected", Kind: skep.DeviceFailed, Err: syscall.EIO}
	late := &skep.Error{Op: "injected", Kind: skep.Deadline}
	io, space := fmt.Errorf("injected: %w", syscall.EIO), fmt.Errorf("injected: %w", syscall.ENOSPC)
	var list []error
	switch {
	case strings.HasPrefix(p.File, "store/catalog/"):
		list = []error{io, space}
	case ofCatalog.MatchString(p.Of):
		list = []error{late, io}
	case ofDrives.MatchString(p.Of):
		list = []error{failed, late}
	default:
		list = []error{io, late, failed}
	}
	return list[i%len(list)]
}
