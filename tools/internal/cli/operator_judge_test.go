//go:build linux

package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/zeebo/xxh3"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/tools/internal/cli"
	"github.com/skepkv/skep/tools/internal/command"
	"github.com/skepkv/skep/tools/internal/command/commandtest"
)

// fingerprint is every file below dir: what it is and what is in it.
func fingerprint(t *testing.T, dir string) map[string]string {
	out := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		what := e.Type().String()
		switch {
		case e.Type()&fs.ModeSymlink != 0:
			to, err := os.Readlink(path)
			if err != nil {
				return err
			}
			what += " to " + to
		case e.Type().IsRegular():
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			what = fmt.Sprintf("%d bytes, %016x", len(b), xxh3.Hash(b))
		}
		out[rel] = what
		return nil
	}))
	return out
}

// newOrGone are the files that came or went, but for the catalog's: an open that is refused may have set a damaged
// one aside, or written a log of it anew. What is in a device may have been mended by it.
func newOrGone(a, b map[string]string) []string {
	return slices.DeleteFunc(differences(a, b), func(s string) bool { return strings.HasPrefix(s, "store/catalog") || strings.Contains(s, " was ") })
}

func differences(a, b map[string]string) (out []string) {
	for name, was := range a {
		if is, ok := b[name]; !ok {
			out = append(out, name+" is gone")
		} else if is != was {
			out = append(out, name+" was "+was+", is "+is)
		}
	}
	for name, is := range b {
		if _, ok := a[name]; !ok {
			out = append(out, name+" is new: "+is)
		}
	}
	slices.Sort(out)
	return out
}

// call gives a command and judges what it says.
func (p *mishap) call(t *testing.T, op operation, at string) commandtest.Output {
	args := slices.Concat(op.path, op.args(p, at), []string{"--json"})
	if op.dir {
		args = append(args, "--dir", filepath.Join(at, "store"))
	}
	if op.devices && p.named {
		if list := p.namedAt(at); len(list) > 0 {
			args = append(args, "--device", strings.Join(list, ","))
		}
	}
	ctx, cancel := contextOf(t)
	defer cancel()
	var out, said bytes.Buffer
	var stdout io.Writer = &out
	if op.endless {
		stdout = &untilItSpeaks{&out, cancel}
	}
	code := cli.Program.Main(ctx, args, strings.NewReader(inspected), stdout, &said)
	o := commandtest.Output{Code: code, Stdout: out.String(), Stderr: said.String()}
	p.said[fmt.Sprint("exit code ", code)]++
	p.judge(t, op, o)
	return o
}

// untilItSpeaks interrupts a command that has printed something.
type untilItSpeaks struct {
	w    io.Writer
	stop context.CancelFunc
}

func (u *untilItSpeaks) Write(p []byte) (int, error) {
	if !bytes.Contains(p, []byte(`"error"`)) {
		u.stop()
	}
	return u.w.Write(p)
}

// knownKinds are the kinds of errors that docs/reference/cli.md names; "error" is one that nobody has a word for.
func isKnownKind(kind string) bool {
	for k := skep.Kind(1); k <= skep.Denied; k++ {
		if k.Error() == kind {
			return true
		}
	}
	return false
}

// codeOfKind is how a command ends with an error of that kind.
func codeOfKind(kind string) int {
	for k := skep.Kind(1); k <= skep.Denied; k++ {
		if k.Error() == kind {
			return command.CodeOf(k)
		}
	}
	return command.Failed
}

func (p *mishap) judge(t *testing.T, op operation, o commandtest.Output) {
	fail := func(why string, args ...any) {
		assert.Fail(t, fmt.Sprintf(why, args...), "skep %s: exit code %d\n%s%s", op.name, o.Code, o.Stdout, o.Stderr)
	}
	failed := strings.Contains(o.Stdout, `"error": {`)
	switch {
	case o.Code == 0 && failed:
		fail("an error with exit code 0")
	case o.Code < command.OK || o.Code > command.Faults:
		fail("an exit code that nobody documents")
	case (o.Code == command.Failed || o.Code == command.Faults) && !failed && !op.verdict:
		fail("a result that is none of the documented reasons for exit codes 1 and 6")
	case failed:
		e := commandtest.Output{Stdout: o.Stdout[strings.LastIndex(o.Stdout, "{\n  \"error\":"):]}.JSON(t)["error"].(map[string]any)
		kind, next, message := e["kind"].(string), e["next"].(string), e["message"].(string)
		if !isKnownKind(kind) {
			fail("an error of no known kind")
		}
		if want := codeOfKind(kind); want != o.Code && !op.endless && !pathError.MatchString(message) {
			fail("%s is told with exit code %d", kind, o.Code)
		}
		if !namesAWayOut(next) && !namesAWayOut(message) {
			fail("no way out is named")
		}
	}
	for _, text := range []string{"runtime error", "goroutine ", "%!", "nil pointer", "<nil>"} {
		if strings.Contains(o.Stdout+o.Stderr, text) {
			fail("%q in what is said", text)
		}
	}
	for _, m := range named.FindAllStringSubmatch(o.Stdout+o.Stderr, -1) {
		if !isCommand(m[1], m[2]) {
			fail("there is no %q", m[0])
		}
	}
}

// judgeError judges an error of the engine, as a program gets it.
func (p *mishap) judgeError(t *testing.T, what string, err error) {
	var e *skep.Error
	if assert.True(t, errors.As(err, &e), "%s: an error of no type: %v", what, err) {
		assert.NotEqual(t, skep.Other, skep.KindOf(err), "%s: an error of no kind: %v", what, err)
		assert.True(t, namesAWayOut(command.NextStep(err)) || namesAWayOut(err.Error()), "%s: no way out is named: %v", what, err)
	}
}

// pathError is what the system says of a path that cannot be used: bad input, whatever was being done with it.
var pathError = regexp.MustCompile(`no such file|permi(ssion|tted)|directory$`)

var wayOut = regexp.MustCompile(`skep [a-z]+|--[a-z]+|docs/[\w/-]+\.md|ulimit|mount|free space|wipe|kernel log|end the process|name a file|who owns`)

func namesAWayOut(text string) bool { return wayOut.MatchString(text) }

// named is a command with an option, as a message names it.
var named = regexp.MustCompile(`skep ([a-z]+(?: [a-z]+)?)(?: [A-Z]+)* (--[a-z-]+)`)

func isCommand(words, option string) bool {
	return slices.ContainsFunc(commandtest.Commands(&cli.Program), func(c commandtest.Command) bool { return strings.Join(c.Path, " ") == words && c.Takes(option[2:]) })
}

// expected is what must be readable, whatever commands are given.
type expected struct {
	p         *mishap
	o         *original
	blocks    []held
	at        string
	catalog   bool // it is as it was
	rebuilt   bool // the catalog is not what blocks are found by
	forgotten map[string]bool
	spoiled   int // devices that are not as they were
	whole     map[int]bool
	locked    map[int]bool         // it may not be written to
	intact    map[int]map[int]bool // by block and device: bytes of a copy on a device that can be opened
	copies    [][]int              // by block: on which devices
	mixed     bool
	wrong     []string
}

// expect looks at what is on the drives at at.
func (p *mishap) expect(t *testing.T, at string) *expected {
	e := &expected{p: p, o: p.o, blocks: p.o.blocks, at: at, mixed: strings.Contains(p.text(), "another store"), forgotten: map[string]bool{}, whole: map[int]bool{}, locked: map[int]bool{}, intact: map[int]map[int]bool{}}
	is, was := fingerprint(t, filepath.Join(at, "store")), fingerprint(t, filepath.Join(p.pristine, "store"))
	e.catalog = true
	for name, what := range was {
		if strings.HasPrefix(name, "catalog") && is[name] != what {
			e.catalog = false
		}
	}
	for name := range is {
		if strings.HasPrefix(name, "catalog") && was[name] == "" {
			e.catalog = false
		}
	}
	found := e.devices(t)
	for d, only := range (&expected{o: p.o, at: p.pristine}).devices(t) {
		list, original := found[d], only[0]
		whole := len(list) > 0 && !e.locked[d]
		for _, b := range list {
			whole = whole && len(b) >= len(original) && sameButASuperblock(original, b)
		}
		e.whole[d] = whole
		if !whole {
			e.spoiled++
		}
		for i := range e.blocks {
			off := bytes.Index(original, e.blocks[i].data)
			if off < 0 {
				continue
			}
			for len(e.copies) <= i {
				e.copies = append(e.copies, nil)
			}
			e.copies[i] = append(e.copies[i], d)
			ok := len(list) > 0 && !e.locked[d]
			for _, b := range list {
				ok = ok && len(b) >= len(original) && bytes.Equal(b[off:off+len(e.blocks[i].data)], e.blocks[i].data)
			}
			if e.intact[i] == nil {
				e.intact[i] = map[int]bool{}
			}
			e.intact[i][d] = ok
		}
	}
	return e
}

// devices are the bytes of the store's devices that can be known, by index, wherever they lie. Of one that was copied
// there are two.
func (e *expected) devices(t *testing.T) map[int][][]byte {
	out := map[int][][]byte{}
	for _, path := range devicesAt(e.at) {
		sb, err := superblockOf(path)
		if err == nil && sb.Store == e.o.id && (e.p == nil || !e.p.isLink(path)) { // the original's file is not the copy's
			b, err := os.ReadFile(path)
			require.NoError(t, err)
			if e.locked != nil && isLocked(path) {
				e.locked[sb.DeviceIndex] = true
			}
			out[sb.DeviceIndex] = append(out[sb.DeviceIndex], b)
		}
	}
	return out
}

func sameButASuperblock(a, b []byte) bool {
	const page = layout.PageSize
	if !bytes.Equal(a[2*page:], b[2*page:len(a)]) {
		return false
	}
	return bytes.Equal(a[:page], b[:page]) || bytes.Equal(a[page:2*page], b[page:2*page])
}

// lessWhatIsGone takes away what cannot be read any more.
func (e *expected) lessWhatIsGone(t *testing.T) {
	found := e.devices(t)
	for d := range e.whole {
		if len(found[d]) == 0 {
			e.whole[d] = false
			e.spoiled++
			for i := range e.intact {
				e.intact[i][d] = false
			}
		}
	}
}

// mustBeThere says that block i is readable by what is documented: a copy is on a device that is as it was, and
// whatever else is needed to find it (the catalog, or logs on two drives of which one at most may be spoiled), or the
// catalog is there and the bytes are.
func (e *expected) mustBeThere(i int) bool {
	b := &e.blocks[i]
	if b.gone || !b.durable || i >= len(e.copies) || e.forgotten[b.space] {
		return false
	}
	byCatalog := e.catalog && !e.rebuilt
	if !byCatalog && (e.spoiled > 1 || e.spoiled == 1 && len(e.copies[i]) < 2) { // its record, too, is written once
		return false
	}
	for d, ok := range e.intact[i] {
		if e.whole[d] || ok && byCatalog {
			return true
		}
	}
	return false
}

func (e *expected) strong() (n int) {
	for i := range e.blocks {
		if e.mustBeThere(i) {
			n++
		}
	}
	return n
}

// wholeStore says that no durable block is lost, and that the catalog is no other store's: that is not taken away by
// an open.
func (e *expected) wholeStore() bool {
	for i := range e.blocks {
		if b := &e.blocks[i]; b.durable && !b.gone && !e.forgotten[b.space] && !e.mustBeThere(i) {
			return false
		}
	}
	return !e.mixed && (e.catalog && !e.rebuilt || e.spoiled == 0)
}

// with is e of the state that is now, with what commands before it may have changed.
func (e *expected) with(was *expected) *expected {
	e.rebuilt, e.forgotten, e.catalog = was.rebuilt, was.forgotten, was.catalog && e.catalog
	e.spoiled = max(e.spoiled, was.spoiled)
	return e
}

// isIts says whether the namespace that a command deleted is this store's: where devices are named and a command
// takes none, what it finds in the directory may be another store.
func (e *expected) isIts(space string, o commandtest.Output) bool {
	var deleted store.NamespaceDeletion
	if json.Unmarshal([]byte(o.Stdout), &deleted) != nil {
		return true
	}
	return slices.ContainsFunc(e.blocks, func(b held) bool { return b.space == space && b.scope.Namespace == deleted.ID })
}

// after is what a command may have changed, by its documents.
func (e *expected) after(op operation, o commandtest.Output) {
	if op.forgets != "" && o.Code == 0 && e.isIts(op.forgets, o) {
		e.forgotten[op.forgets] = true
	}
	if op.rebuilds {
		e.rebuilt = true
	}
	for _, path := range devicesAt(e.at) {
		if sb, err := superblockOf(path); err == nil && sb.Store != e.o.id {
			e.mixed = true // a command that was not told of the devices, where no catalog names them, made a store of its own
		}
	}
}

// read opens the store and compares every block. What is wrong is in e.wrong; the error is the open's.
func (e *expected) read(t *testing.T, o store.Options, degraded string) error {
	ctx, cancel := contextOf(t)
	defer cancel()
	o.Degraded = degraded
	s, err := store.Open(ctx, o)
	if err != nil {
		return err
	}
	defer func() { assert.NoError(t, s.Close()) }()
	e.wrong = nil
	for i := range e.blocks {
		b := &e.blocks[i]
		data, err := readBlock(ctx, s, b)
		switch {
		case err == nil && !bytes.Equal(data, b.data):
			e.wrong = append(e.wrong, fmt.Sprintf("block %d of %s has wrong bytes", i, b.space))
		case err == nil && (b.gone && e.spoiled <= 1 || e.forgotten[b.space]):
			e.wrong = append(e.wrong, fmt.Sprintf("block %d of %s was deleted and is back", i, b.space))
		case err != nil && e.mustBeThere(i):
			e.wrong = append(e.wrong, fmt.Sprintf("block %d of %s, on devices %v, can be read on the drives and is not: %v", i, b.space, e.copies[i], err))
		}
	}
	if n := len(e.wrong); n > 5 {
		e.wrong = append(e.wrong[:5], fmt.Sprintf("… and %d more", n-5))
	}
	return nil
}
