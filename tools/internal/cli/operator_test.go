//go:build linux

package cli_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store"
)

// An operator makes copies and half copies of a store's directory and opens them beside the original; devices are
// swapped, cut short, blanked, another store's, read-only, gone, gone while the store is open. One to three of these
// are drawn, then every command that takes a directory is given on what is there, with and without --dry-run, and at
// the end the way out is taken that the messages name.
//
// SKEP_OPERATOR_TIME says for how long; without it every command is given once or twice, spread over a few states.
// SKEP_SEED plays a state again: it is the first one then.
func TestOperator(t *testing.T) {
	t.Parallel()
	seed := operatorSeed(t)
	long, _ := time.ParseDuration(os.Getenv("SKEP_OPERATOR_TIME"))
	deck := &deck{all: operations(t)}
	book := makeOriginals(t)
	states, rng := 0, rand.New(rand.NewPCG(seed, 1))
	for end := time.Now().Add(long); states < 4 || time.Now().Before(end); states++ {
		p := &mishap{book: book, seed: seed, rng: rand.New(rand.NewPCG(seed, 0)), said: map[string]int{}}
		hand := deck.deal(rng, (len(deck.all)+3)/4)
		if long > 0 {
			hand = deck.all
		}
		ok := t.Run("SKEP_SEED="+strconv.FormatUint(seed, 10), func(t *testing.T) { p.run(t, hand) })
		for code, n := range p.said {
			deck.count(code, n)
		}
		if !ok && long == 0 {
			break
		}
		seed = rng.Uint64()
	}
	t.Logf("%d states, %d commands, %s", states, deck.calls, deck.text())
}

func operatorSeed(t *testing.T) uint64 {
	seed := uint64(1) // make explore gives one that nobody has had
	if os.Getenv("SKEP_OPERATOR_TIME") != "" {
		seed = rand.Uint64()
	}
	if v := os.Getenv("SKEP_SEED"); v != "" {
		var err error
		seed, err = strconv.ParseUint(v, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("SKEP_SEED=%d", seed)
	return seed
}

// deck deals operations so that each comes once before any comes again.
type deck struct {
	all, left []operation
	calls     int
	codes     map[string]int
}

func (d *deck) deal(rng *rand.Rand, n int) (hand []operation) {
	for len(hand) < n {
		if len(d.left) == 0 {
			d.left = slices.Clone(d.all)
			rng.Shuffle(len(d.left), func(i, j int) { d.left[i], d.left[j] = d.left[j], d.left[i] })
		}
		hand, d.left = append(hand, d.left[0]), d.left[1:]
	}
	return hand
}

func (d *deck) count(code string, n int) {
	if d.codes == nil {
		d.codes = map[string]int{}
	}
	d.codes[code] += n
	d.calls += n
}

func (d *deck) text() string {
	var out []string
	for code, n := range d.codes {
		out = append(out, fmt.Sprintf("%s: %d", code, n))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// mishap is one state of a copy, and what is done to it.
type mishap struct {
	book     *originals
	seed     uint64
	rng      *rand.Rand
	o        *original
	root     string // everything of this play is below it
	pristine string // the copy as it was made
	isOpen   bool   // what is drawn next happens while it is open
	linked   bool   // a device of the copy is the original's file
	busy     bool   // the original is open
	lost     []int  // the devices that are gone, where nothing else is wrong
	template string // the copy in its state: root/template/store, root/template/drives
	what     []string
	named    bool // devices are named wherever a command lets them be
	said     map[string]int
}

func (p *mishap) run(t *testing.T, hand []operation) {
	p.root = t.TempDir()
	p.o = p.book.list[p.rng.IntN(len(p.book.list))]
	before := fingerprint(t, p.o.place)
	p.template = filepath.Join(p.root, "template")
	p.copy(t)
	p.named = p.rng.IntN(3) == 0 || p.o.outside && p.has("drives")
	live := p.rng.IntN(4) == 0
	for range 1 + p.rng.IntN(3) {
		p.spoil(t, p.template)
		if live {
			break // and another one while it is open
		}
	}
	t.Cleanup(func() { unlock(p.root) })
	t.Log(p.text(), "; named:", p.named)
	if p.rng.IntN(3) == 0 {
		t.Log("the original is open meanwhile")
		opened, err := store.Open(t.Context(), p.o.options())
		require.NoError(t, err)
		defer func() {
			assert.NoError(t, opened.Close())
			p.o.requireAll(t)
		}()
		before, p.busy = nil, true
	}
	if live {
		p.whileOpen(t, hand)
	} else {
		p.atRest(t, hand)
	}
	if before != nil {
		assert.Empty(t, differences(before, fingerprint(t, p.o.place)), "the original was touched")
	}
}

// atRest gives commands on a copy that nobody has open.
func (p *mishap) atRest(t *testing.T, hand []operation) {
	var change []operation
	at := p.place(t)
	was := p.files(t, at)
	for _, op := range hand {
		if !op.reads {
			change = append(change, op)
			continue
		}
		p.call(t, op, at)
		if diff := differences(was, p.files(t, at)); !assert.Empty(t, diff, "%s changes something", op.name) {
			p.remove(t, at)
			at = p.place(t)
		}
	}
	p.remove(t, at)
	for len(change) > 0 {
		n := min(len(change), 1+p.rng.IntN(3))
		p.inTurn(t, change[:n])
		change = change[n:]
	}
	p.inTurn(t, nil)
	if len(p.lost) > 0 {
		p.replaceLost(t)
	}
}

// replaceLost replaces the devices that are gone, each by a new one: that goes however many there are, and what the
// others have is there afterwards.
func (p *mishap) replaceLost(t *testing.T) {
	at := p.place(t)
	e := p.expect(t, at)
	for _, d := range p.lost {
		successor := filepath.Join(at, "store", "device-"+strconv.Itoa(10+d))
		replace := operation{name: "device replace --force", path: []string{"device", "replace"},
			args: words(strconv.Itoa(d), successor, "--force"), dir: true}
		o := p.call(t, replace, at)
		assert.Zero(t, o.Code, "device %d is not replaced: %s%s", d, o.Stdout, o.Stderr)
	}
	o := p.o.optionsAt(at)
	assert.NoError(t, e.read(t, o, store.DegradedNever), "nothing is missing any more")
	for _, why := range e.wrong {
		assert.Fail(t, why, "after devices %v were replaced", p.lost)
	}
	p.remove(t, at)
}

// inTurn gives commands on a copy, one after the other, and then takes the way out.
func (p *mishap) inTurn(t *testing.T, ops []operation) {
	at := p.place(t)
	e := p.expect(t, at)
	var names []string
	for _, op := range ops {
		names = append(names, op.name)
		was := p.files(t, at)
		if o := p.call(t, op, at); o.Code == 2 {
			assert.Empty(t, newOrGone(was, p.files(t, at)), "%s ended with 2, which says that nothing was changed: %s", op.name, o.Stderr)
		} else {
			e.after(op, o)
		}
	}
	p.wayOut(t, at, e, strings.Join(names, ", "))
	p.remove(t, at)
}

// whileOpen opens the copy, if that goes, spoils something then, and gives commands.
func (p *mishap) whileOpen(t *testing.T, hand []operation) {
	at := p.place(t)
	e := p.expect(t, at)
	o := p.o.optionsAt(at)
	o.Admin = true
	if p.named {
		o.Devices = p.namedAt(at)
	}
	s, err := store.Open(t.Context(), o)
	if err == nil {
		if e.spoiled == 0 {
			p.isOpen = true
			p.spoil(t, at)
			t.Log("while it is open:", p.what[len(p.what)-1])
			e.lessWhatIsGone(t)
		}
		for _, op := range hand {
			if op.served {
				e.after(op, p.call(t, op, at))
			}
		}
		if err := s.Close(); err != nil {
			p.judgeError(t, "close", err)
		}
	} else {
		p.judgeError(t, "open", err)
	}
	p.wayOut(t, at, e, "open meanwhile")
	p.remove(t, at)
}

// place makes the state anew, for commands to work on.
func (p *mishap) place(t *testing.T) string {
	at := filepath.Join(p.root, fmt.Sprintf("at-%d", p.rng.Uint32()))
	copyTree(t, p.template, at)
	for _, path := range p.hardLinks(p.template) {
		// A hard link stays one. Copied, it would be a device of a later time beside others of an earlier one, if the
		// original is open meanwhile: several devices that are out of date, and nobody said so.
		rel, err := filepath.Rel(p.template, path)
		require.NoError(t, err)
		require.NoError(t, os.Remove(filepath.Join(at, rel)))
		require.NoError(t, os.Link(path, filepath.Join(at, rel)))
	}
	return at
}

// hardLinks are the devices at place that are the original's files by another name.
func (p *mishap) hardLinks(place string) []string {
	return slices.DeleteFunc(devicesAt(place), func(path string) bool {
		st, err := os.Lstat(path)
		return err != nil || !st.Mode().IsRegular() || !p.isTheOriginals(path)
	})
}

// files is the fingerprint of what a command may not change. Who has the original open writes to its files.
func (p *mishap) files(t *testing.T, at string) map[string]string {
	out := fingerprint(t, at)
	if p.busy {
		for _, path := range p.hardLinks(at) {
			rel, err := filepath.Rel(at, path)
			require.NoError(t, err)
			delete(out, rel)
		}
	}
	return out
}

func (p *mishap) remove(t *testing.T, at string) {
	unlock(at)
	require.NoError(t, os.RemoveAll(at))
}

// has says whether the copy has something of that name beside its directory.
func (p *mishap) has(name string) bool {
	_, err := os.Lstat(filepath.Join(p.template, name))
	return err == nil
}

// wayOut does what the messages say until the store opens and everything is there that was there before.
func (p *mishap) wayOut(t *testing.T, at string, e *expected, after string) {
	o := p.o.optionsAt(at)
	if p.named {
		o.Devices = p.namedAt(at)
	}
	// A device that was taken out meanwhile is not named any more.
	read := func(degraded string) error {
		err := e.read(t, o, degraded)
		if err != nil && p.named {
			fewer := o
			fewer.Devices = slices.DeleteFunc(p.namedAt(at), func(path string) bool { sb, err := superblockOf(path); return err != nil || sb.Store != p.o.id })
			if e.read(t, fewer, degraded) == nil {
				return nil
			}
		}
		return err
	}
	var steps []string
	done := func(step string, err error) bool {
		steps = append(steps, step)
		if err != nil {
			p.judgeError(t, strings.Join(steps, ", ")+", after "+after, err)
		}
		return err == nil && len(e.wrong) == 0
	}
	err := read(store.DegradedAuto)
	if done("open", err) {
		return
	}
	if e.wholeStore() {
		assert.NoError(t, err, "every block can be read, after %s", after)
	}
	if slices.ContainsFunc(devicesAt(at), isLocked) && err != nil && pathError.MatchString(err.Error()) {
		unlock(at)
		e = p.expect(t, at).with(e)
		err = read(store.DegradedAuto)
		if done("devices made writable, open", err) {
			return
		}
	}
	if err == nil { // it opened, and what is wrong stays wrong
		for _, why := range e.wrong {
			assert.Fail(t, why, "after %s; %s", after, strings.Join(steps, ", "))
		}
		return
	}
	strong := e.strong()
	for _, step := range []struct {
		name     string
		args     []string
		degraded string
	}{
		{"rebuild, open", []string{}, store.DegradedAuto},
		{"open without what is missing", nil, store.DegradedAlways},
		{"rebuild --without-missing, open", []string{"--without-missing"}, store.DegradedAuto},
	} {
		if step.args != nil {
			rebuild := operation{name: step.name, path: []string{"rebuild"}, args: words(step.args...), dir: true, devices: true}
			said := p.call(t, rebuild, at)
			if said.Code != 0 && slices.ContainsFunc(devicesAt(at), isLocked) && pathError.MatchString(said.Stderr) {
				unlock(at)
				e = p.expect(t, at).with(e)
				steps = append(steps, "devices made writable")
				said = p.call(t, rebuild, at)
			}
			if said.Code != 0 {
				steps = append(steps, step.name+": "+said.Stderr)
				continue
			}
			e.rebuilt = true
		}
		if err = read(step.degraded); done(step.name, err) {
			return
		}
	}
	for _, why := range e.wrong {
		assert.Fail(t, why, "after %s; %s", after, strings.Join(steps, ", "))
	}
	if err != nil {
		assert.Zero(t, strong, "there is no way out (%s), after %s: %v", strings.Join(steps, ", "), after, err)
	}
}

// contextOf ends a command that does not end.
func contextOf(t *testing.T) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), 2*time.Minute)
}
