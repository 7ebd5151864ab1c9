package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"text/tabwriter"
	"time"
)

//go:embed mutants.txt
var listText string

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// errSurvivors is returned when the suite did not notice every mutant.
var errSurvivors = errors.New("there are survivors: the suite misses what they break")

func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("mutants", flag.ContinueOnError)
	which := flags.String("run", "", "only mutants whose name or class matches this expression")
	check := flags.Bool("check", false, "only check that the list fits the source")
	timeout := flags.Duration("timeout", 4*time.Minute, "for each run of go test")
	verbose := flags.Bool("v", false, "print the end of what each failing test said")
	done := flags.String("done", "", "a `file` that gets each mutant's outcome; those it calls dead are not run")
	if err := flags.Parse(args); err != nil {
		return err
	}
	match, err := regexp.Compile(*which)
	if err != nil {
		return err
	}
	root, err := repository()
	if err != nil {
		return err
	}
	list, err := parse(listText)
	if err == nil {
		err = enough(list)
	}
	if err != nil {
		return fmt.Errorf("mutants.txt: %w", err)
	}
	if err := fits(list, root); err != nil || *check {
		return err
	}
	dead, err := deadIn(*done)
	if err != nil {
		return err
	}
	r := runner{root: root, timeout: *timeout, out: out, verbose: *verbose, done: *done}
	if r.dir, err = os.MkdirTemp("", "mutants"); err != nil {
		return err
	}
	defer os.RemoveAll(r.dir)
	var chosen []mutant
	before := 0
	for _, m := range list {
		switch {
		case !match.MatchString(m.name) && !match.MatchString(m.class):
		case dead[m.name]:
			before++
		default:
			chosen = append(chosen, m)
		}
	}
	if len(chosen)+before == 0 {
		return fmt.Errorf("no mutant matches %q", *which)
	}
	if before > 0 {
		fmt.Fprintf(out, "%d mutants are dead already, as %s says\n", before, *done)
	}
	if err := r.baseline(chosen); err != nil {
		return err
	}
	return r.all(chosen)
}

// repository is the root of the module this runs in.
func repository() (string, error) {
	b, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", err
	}
	mod := strings.TrimSpace(string(b))
	if mod == "" || mod == os.DevNull {
		return "", errors.New("run it inside the repository")
	}
	return filepath.Dir(mod), nil
}

// fits checks every mutant against the source, so that all misfits are told at once.
func fits(list []mutant, root string) error {
	var errs []error
	for i := range list {
		if _, err := list[i].apply(root); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// runner runs go test.
type runner struct {
	root, dir string
	timeout   time.Duration
	out       io.Writer
	verbose   bool
	done      string // where outcomes are written; "": nowhere
}

// outcome is what became of one run of go test.
type outcome int

const (
	passed outcome = iota
	noticed
	outOfTime
	notBuilt
)

func (o outcome) String() string {
	return [...]string{"SURVIVED", "dead", "dead, out of time", "DOES NOT COMPILE"}[o]
}

// test runs one command, with overlay when that is not empty.
func (r *runner) test(c command, overlay string) (outcome, string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), r.timeout)
	defer cancel()
	args := []string{"test", "-count=1", "-timeout", r.timeout.String()}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	cmd := exec.CommandContext(ctx, "go", append(append(args, c.pkg), c.args...)...)
	cmd.Dir = r.root
	cmd.Env = append(os.Environ(), c.env...)
	cmd.WaitDelay = 10 * time.Second
	b, err := cmd.CombinedOutput()
	said := string(b)
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil || strings.Contains(said, "panic: test timed out"):
		return outOfTime, said, nil
	case err == nil && strings.Contains(said, "no tests to run"):
		return 0, said, fmt.Errorf("go test %s: no tests to run", c)
	case err == nil:
		return passed, said, nil
	case strings.Contains(said, "[build failed]") || strings.Contains(said, "[setup failed]"):
		return notBuilt, said, nil
	case errors.As(err, &exit):
		return noticed, said, nil
	}
	return 0, said, err
}

// baseline requires that what is to notice mutants passes without them.
func (r *runner) baseline(list []mutant) error {
	done := map[string]bool{}
	for _, m := range list {
		for _, c := range m.tests {
			if done[c.String()] {
				continue
			}
			done[c.String()] = true
			begin := time.Now()
			o, said, err := r.test(c, "")
			if err != nil {
				return err
			}
			if o != passed {
				return fmt.Errorf("go test %s does not pass on the code as it is:\n%s", c, said)
			}
			fmt.Fprintf(r.out, "as it is: %s passes in %.1f s\n", c, time.Since(begin).Seconds())
		}
	}
	return nil
}

func (r *runner) all(list []mutant) error {
	w := tabwriter.NewWriter(r.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nmutant\tclass\tfile\tnoticed by\toutcome\tseconds")
	alive, broken := 0, 0
	for i := range list {
		m := &list[i]
		begin := time.Now()
		o, by, err := r.one(m)
		if err != nil {
			return err
		}
		if err := r.note(m, o); err != nil {
			return err
		}
		switch o {
		case passed:
			alive++
		case notBuilt:
			broken++
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%.1f\n", m.name, m.class, m.file, by, o, time.Since(begin).Seconds())
		fmt.Fprintf(os.Stderr, "%d of %d: %s: %s\n", i+1, len(list), m.name, o)
	}
	w.Flush()
	fmt.Fprintf(r.out, "%d mutants, %d dead, %d survivors\n", len(list), len(list)-alive-broken, alive)
	switch {
	case broken > 0:
		return fmt.Errorf("%d mutants do not compile", broken)
	case alive > 0:
		return errSurvivors
	}
	return nil
}

// note writes an outcome, as a line that deadIn reads.
func (r *runner) note(m *mutant, o outcome) error {
	if r.done == "" {
		return nil
	}
	f, err := os.OpenFile(r.done, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%s %s\n", m.name, o)
	return errors.Join(err, f.Close())
}

// deadIn lists the mutants that file says were noticed; the last line about one counts. A line that was not written to
// its end says nothing, and a file that is not there yet says nothing either.
func deadIn(file string) (map[string]bool, error) {
	if file == "" {
		return nil, nil
	}
	b, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	dead := map[string]bool{}
	for line := range strings.Lines(string(b)) {
		name, said, _ := strings.Cut(line, " ")
		dead[name] = said == noticed.String()+"\n" || said == outOfTime.String()+"\n"
	}
	return dead, nil
}

// one runs a mutant's tests until one notices.
func (r *runner) one(m *mutant) (o outcome, by string, err error) {
	src, err := m.apply(r.root)
	if err != nil {
		return 0, "", err
	}
	file := filepath.Join(r.dir, m.name+".go")
	if err := os.WriteFile(file, src, 0o644); err != nil {
		return 0, "", err
	}
	var overlay bytes.Buffer
	replace := map[string]map[string]string{"Replace": {filepath.Join(r.root, m.file): file}}
	if err := json.NewEncoder(&overlay).Encode(replace); err != nil {
		return 0, "", err
	}
	path := filepath.Join(r.dir, m.name+".json")
	if err := os.WriteFile(path, overlay.Bytes(), 0o644); err != nil {
		return 0, "", err
	}
	for _, c := range m.tests {
		o, said, err := r.test(c, path)
		if err != nil || o == passed {
			if err != nil {
				return 0, "", err
			}
			continue
		}
		if r.verbose || o == notBuilt {
			fmt.Fprintln(os.Stderr, tail(said, 3000))
		}
		return o, c.String(), nil
	}
	return passed, "nothing", nil
}

func tail(s string, n int) string {
	if len(s) > n {
		return "…" + s[len(s)-n:]
	}
	return s
}
