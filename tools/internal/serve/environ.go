package serve

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/skepkv/skep"
)

const (
	envPrefix  = "SKEP_"
	testPrefix = "SKEP_TEST_" // what tests tell the processes that they start
)

// notSettings are variables that other programs of this house read, and whose names are like a setting's.
var notSettings = []string{"SKEP_CONFIG", "SKEP_CONNECTIONS", "SKEP_SERVER", "SKEP_TOKEN", "SKEP_CA"}

// serviceLink is how Kubernetes names the variables by which every container is told of a service: one that
// is called skep-store is no setting of the store.
var serviceLink = regexp.MustCompile(`_(SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// variables reads an environment as the system gives it, NAME=VALUE; the last of a name counts.
func variables(environ []string) map[string]string {
	out := map[string]string{}
	for _, e := range environ {
		if name, value, ok := strings.Cut(e, "="); ok {
			out[name] = value
		}
	}
	return out
}

// misnamed says which variables are meant as settings and are none: they begin as those of a part of the
// configuration do, or differ from a setting's by a letter or two. All others are somebody else's.
func (c *Config) misnamed(vars map[string]string) (wrong []error) {
	named := slices.Clone(notSettings)
	for _, cr := range c.Credentials {
		named = append(named, cr.TokenEnv)
	}
	for _, t := range c.Tenants {
		named = append(named, t.EncryptionKeyEnv)
	}
	all := fields(c)
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		if !strings.HasPrefix(name, envPrefix) || strings.HasPrefix(name, testPrefix) || slices.Contains(named, name) || serviceLink.MatchString(name) {
			continue
		}
		if limit := meant(all, name); limit != "" {
			wrong = append(wrong, skep.Invalidf("settings", "the environment's "+name, "no setting", limit))
		}
	}
	return firstOf("the environment", wrong)
}

// meant is what should be written for a variable that is meant as a setting; empty: it is one, or is not meant as one.
func meant(all []field, name string) string {
	part, near, nearest := false, "", 3
	rest := strings.TrimPrefix(name, envPrefix)
	for _, f := range all {
		env := f.env()
		if env == name {
			return ""
		}
		section, last, inside := strings.Cut(f.path, ".")
		part = part || inside && strings.HasPrefix(rest, strings.ToUpper(section)+"_")
		flag := strings.ToUpper(strings.ReplaceAll(f.flag, "-", "_"))
		if inside && (rest == strings.ToUpper(last) || rest == flag && flag != "") {
			return env
		}
		most := 2
		if len(rest) < 6 {
			most = 1
		}
		if n := edits(rest, strings.TrimPrefix(env, envPrefix)); n <= most && n < nearest {
			near, nearest = env, n
		}
	}
	for _, list := range []string{"CREDENTIALS", "TENANTS"} {
		if rest == list || strings.HasPrefix(rest, list+"_") {
			return strings.ToLower(list) + " in the configuration's file: the environment has none"
		}
	}
	if near == "" && part {
		return "one that skep config show shows"
	}
	return near
}

// edits is how many letters are put in, left out or changed between a and b.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := before
			if a[i] != b[j] {
				change++
			}
			before = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
