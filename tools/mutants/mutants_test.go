package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The list fits the source as it is. When this fails, a line that a mutant breaks has
// changed: say in mutants.txt what breaks it now.
func TestTheListFitsTheSource(t *testing.T) {
	t.Parallel()
	list, err := parse(listText)
	require.NoError(t, err)
	require.NoError(t, enough(list))
	require.NoError(t, fits(list, "../.."))
}

var testFunction = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)

// Each test that a mutant names is there: a run of none would end the whole campaign.
func TestTheListNamesTestsThatAreThere(t *testing.T) {
	t.Parallel()
	list, err := parse(listText)
	require.NoError(t, err)
	for _, m := range list {
		for _, c := range m.tests {
			i := slices.Index(c.args, "-run")
			if i < 0 {
				continue
			}
			first, _, _ := strings.Cut(c.args[i+1], "/")
			pattern, err := regexp.Compile(first)
			require.NoError(t, err, m.name)
			files, err := filepath.Glob(filepath.Join("../..", c.pkg, "*_test.go"))
			require.NoError(t, err)
			found := slices.ContainsFunc(files, func(f string) bool {
				src, err := os.ReadFile(f)
				require.NoError(t, err)
				return slices.ContainsFunc(testFunction.FindAllStringSubmatch(string(src), -1), func(m []string) bool { return pattern.MatchString(m[1]) })
			})
			assert.True(t, found, "%s: go test %s: there is no such test", m.name, c)
		}
	}
}

const oneMutant = "swap order a.go\nin Second\ntest X=1 ./p -run T\n- b()\n+ c()\n"

func TestApply(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	src := "func First() {\n\tb()\n}\n\nfunc Second() {\n\tb()\n}\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a.go"), []byte(src), 0o644))
	list, err := parse(oneMutant)
	require.NoError(t, err)
	require.Equal(t, []command{{env: []string{"X=1"}, pkg: "./p", args: []string{"-run", "T"}}}, list[0].tests)
	got, err := list[0].apply(dir)
	require.NoError(t, err)
	require.Equal(t, "func First() {\n\tb()\n}\n\nfunc Second() {\n\tc()\n}\n", string(got))

	for _, tt := range []struct{ name, old, new, says string }{
		{"a line that is gone", "- b()", "- d()", "is not there any more"},
		{"a line that is there twice", "in Second\n", "", "is there twice"},
		{"a function that is gone", "in Second", "in Third", "is in no function"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			list, err := parse(strings.Replace(oneMutant, tt.old, tt.new, 1))
			require.NoError(t, err)
			_, err = list[0].apply(dir)
			require.ErrorContains(t, err, tt.says)
		})
	}
}

func TestBadLists(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, text, says string }{
		{"no tests", "m order a.go\n- b\n+ c\n", "lacks its tests"},
		{"nothing changes", "m order a.go\ntest ./p\n- b\n+ b\n", "lacks its tests, its old or its new line"},
		{"a name twice", oneMutant + "\n" + oneMutant, "a new name"},
		{"two lines at once", "m order a.go\ntest ./p\n- b\n+ c\n- d\n+ e\n", "not part of a mutant"},
		{"a package that is none", "m order a.go\ntest p\n- b\n+ c\n", "want a package"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := parse(tt.text)
			require.ErrorContains(t, err, tt.says)
		})
	}
	list, err := parse(oneMutant)
	require.NoError(t, err)
	require.ErrorContains(t, enough(list), "class order has 1 mutants, must have at least 3")
}

// What a file of outcomes calls dead is not run again; a survivor is, and what was written last counts.
func TestDone(t *testing.T) {
	t.Parallel()
	list, err := parse(listText)
	require.NoError(t, err)
	r := runner{done: filepath.Join(t.TempDir(), "done")}
	dead, err := deadIn(r.done)
	require.NoError(t, err)
	require.Empty(t, dead, "the first run has no file yet")
	for i := range 3 {
		require.NoError(t, r.note(&list[i], passed))
		require.NoError(t, r.note(&list[i], []outcome{noticed, outOfTime, notBuilt}[i]))
	}
	f, err := os.OpenFile(r.done, os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteString(list[3].name + " dead, out")
	require.NoError(t, err)
	require.NoError(t, f.Close())
	dead, err = deadIn(r.done)
	require.NoError(t, err)
	for i := range 5 {
		require.Equal(t, i < 2, dead[list[i].name], list[i].name)
	}
	var out strings.Builder
	only := "^(" + list[0].name + "|" + list[1].name + ")$"
	require.NoError(t, run([]string{"-run", only, "-done", r.done}, &out))
	require.Contains(t, out.String(), "2 mutants are dead already")
	require.Contains(t, out.String(), "0 mutants, 0 dead, 0 survivors")
	require.ErrorContains(t, run([]string{"-run", only, "-done", t.TempDir()}, &out), "directory")
}
