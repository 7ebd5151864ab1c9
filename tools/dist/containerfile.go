package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// recipe is the last stage of a Containerfile.
type recipe struct {
	config v1.Config
	copies []copied
}

// copied is what a COPY takes from the stage that builds.
type copied struct {
	from, to string
	uid, gid int
}

// parse reads the last stage of a Containerfile, which begins with FROM scratch. It knows the few instructions that
// such a stage has, and refuses every other: what it does not understand would be missing in the image.
func parse(text string) (r recipe, err error) {
	stage := false
	for n, line := range joined(text) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		if rest = strings.TrimSpace(rest); word == "" || strings.HasPrefix(word, "#") {
			continue
		}
		if word == "FROM" {
			r, stage = recipe{}, rest == "scratch"
			continue
		}
		if !stage {
			continue
		}
		if err := r.add(word, rest); err != nil {
			return recipe{}, fmt.Errorf("line %d: %s: %w", n+1, word, err)
		}
	}
	if !stage {
		return recipe{}, fmt.Errorf("the last stage must be FROM scratch")
	}
	return r, nil
}

// joined are the lines, with those that end with a backslash put before the next.
func joined(text string) []string {
	return strings.Split(strings.ReplaceAll(text, "\\\n", " "), "\n")
}

func (r *recipe) add(word, rest string) (err error) {
	c := &r.config
	switch word {
	case "USER":
		c.User = rest
	case "STOPSIGNAL":
		c.StopSignal = rest
	case "WORKDIR":
		c.WorkingDir = rest
	case "ENV":
		if strings.ContainsAny(rest, `"' `) || !strings.Contains(rest, "=") {
			return fmt.Errorf("%q, must be NAME=VALUE without quotes", rest)
		}
		c.Env = append(c.Env, rest)
	case "VOLUME":
		c.Volumes = add(c.Volumes, strings.Fields(rest), "")
	case "EXPOSE":
		c.ExposedPorts = add(c.ExposedPorts, strings.Fields(rest), "/tcp")
	case "ENTRYPOINT":
		err = json.Unmarshal([]byte(rest), &c.Entrypoint)
	case "CMD":
		err = json.Unmarshal([]byte(rest), &c.Cmd)
	case "HEALTHCHECK":
		c.Healthcheck, err = healthcheck(rest)
	case "COPY":
		err = r.copy(strings.Fields(rest))
	default:
		return fmt.Errorf("not known")
	}
	return err
}

// healthcheck reads --OPTION=DURATION … CMD ["…"].
func healthcheck(rest string) (*v1.HealthConfig, error) {
	options, test, found := strings.Cut(rest, "CMD ")
	if !found {
		return nil, fmt.Errorf("%q, must have a CMD", rest)
	}
	h := &v1.HealthConfig{}
	if err := json.Unmarshal([]byte(test), &h.Test); err != nil {
		return nil, err
	}
	h.Test = append([]string{"CMD"}, h.Test...)
	for _, o := range strings.Fields(options) {
		name, value, _ := strings.Cut(o, "=")
		d, err := time.ParseDuration(value)
		if err != nil {
			return nil, err
		}
		switch name {
		case "--interval":
			h.Interval = d
		case "--timeout":
			h.Timeout = d
		case "--start-period":
			h.StartPeriod = d
		default:
			return nil, fmt.Errorf("%s is not known", o)
		}
	}
	return h, nil
}

func add(set map[string]struct{}, names []string, suffix string) map[string]struct{} {
	if set == nil {
		set = map[string]struct{}{}
	}
	for _, n := range names {
		set[n+suffix] = struct{}{}
	}
	return set
}

func (r *recipe) copy(words []string) (err error) {
	var c copied
	var paths []string
	for _, w := range words {
		owner, owned := strings.CutPrefix(w, "--chown=")
		switch {
		case strings.HasPrefix(w, "--from="):
		case owned:
			uid, gid, _ := strings.Cut(owner, ":")
			if c.uid, err = strconv.Atoi(uid); err != nil {
				return err
			}
			if c.gid, err = strconv.Atoi(gid); err != nil {
				return err
			}
		case strings.HasPrefix(w, "--"):
			return fmt.Errorf("%s is not known", w)
		default:
			paths = append(paths, w)
		}
	}
	if len(paths) != 2 {
		return fmt.Errorf("%d paths, must be 2", len(paths))
	}
	c.from, c.to = paths[0], paths[1]
	r.copies = append(r.copies, c)
	return nil
}
