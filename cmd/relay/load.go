package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/providers/posflag"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/pflag"
)

// loader builds a configuration from its sources, the weakest first, and collects every mistake on the way.
type loader struct {
	config   *Config
	keys     map[string]key
	names    []string          // of the keys, in order
	sources  map[string]string // by key: where its value came from
	mistakes Mistakes
}

// loadConfig reads file, environment and flags. The result is always usable for looking at; whether it can be
// run is what check says.
func loadConfig(flags *pflag.FlagSet, environ []string) *loader {
	l := &loader{config: defaultConfig(), keys: map[string]key{}, sources: map[string]string{}}
	for _, k := range l.config.keys() {
		l.keys[k.name] = k
		l.names = append(l.names, k.name)
	}
	l.loadFile(configFile(flags, environ))
	l.loadEnv(environ)
	l.loadFlags(flags)
	if l.sources["tables"] != "" && l.sources["postgres.table"] != "" {
		l.mistake("postgres.table", l.sources["postgres.table"], "tables is set too", "keep one of them")
	}
	return l
}

// check returns all mistakes as one error, those of reading and those of validation. With sections given, only
// these parts of the configuration are validated: a command that never talks to Kafka needs no brokers.
func (l *loader) check(sections ...string) error {
	ms := slices.Clone(l.mistakes)
	l.config.validate(func(key, problem, hint string) {
		section, _, _ := strings.Cut(key, ".")
		section, _, _ = strings.Cut(section, "[")
		if len(sections) > 0 && !slices.Contains(sections, section) {
			return
		}
		// A value that could not be read is not judged by the default that stands in its place.
		if slices.ContainsFunc(l.mistakes, func(m Mistake) bool { return m.Key == key }) {
			return
		}
		ms = append(ms, Mistake{Key: key, Source: l.sources[key], Problem: problem, Hint: hint})
	})
	sortMistakes(ms, l.names)
	return ms.errorOrNil()
}

func (l *loader) mistake(key, source, problem, hint string) {
	l.mistakes = append(l.mistakes, Mistake{Key: key, Source: source, Problem: problem, Hint: hint})
}

// configFile returns the path of the configuration file, "" for none.
func configFile(flags *pflag.FlagSet, environ []string) string {
	if path, err := flags.GetString("config"); err == nil && path != "" {
		return path
	}
	path := ""
	for _, e := range environ {
		if v, ok := strings.CutPrefix(e, envPrefix+"CONFIG="); ok {
			path = v
		}
	}
	return path
}

func (l *loader) loadFile(path string) {
	if path == "" {
		return
	}
	source := "file " + path
	k := koanf.New(".")
	if _, err := os.ReadFile(path); err != nil {
		l.mistake("", source, "cannot be read: "+causeOf(err), "name the file with --config or RELAY_CONFIG, or leave both out")
		return
	}
	if err := k.Load(file.Provider(path), yaml.Parser()); err != nil {
		// The parser quotes what it stumbled over, which may be a secret: only the line is told.
		l.mistake("", source, "not a YAML mapping of keys to values"+yamlLine(err), "see relay config for the form")
		return
	}
	values := k.All()
	for _, name := range slices.Sorted(maps.Keys(values)) {
		known, ok := l.keys[name]
		switch {
		case ok && known.entries != nil:
			l.setEntries(name, source, known.entries, values[name])
		case ok:
			l.setFromFile(known, source, values[name], path)
		case l.isSection(name):
			if m, isMap := values[name].(map[string]any); values[name] != nil && (!isMap || len(m) > 0) {
				l.mistake(name, source, "is a section, not a value", "write its keys below it, indented")
			}
		default:
			if k, isList := l.keys[strings.SplitN(name, ".", 2)[0]]; isList && k.entries != nil {
				l.mistake(k.name, source, "is not a list of mappings", "begin each entry with a dash")
				continue
			}
			l.mistake(name, source, "unknown key", suggest(name, l.names, "relay config lists all keys"))
		}
	}
}

func (l *loader) setFromFile(k key, source string, v any, path string) {
	text, problem, hint := yamlText(v, k.value.Type())
	if problem != "" {
		l.mistake(k.name, source, problem, hint)
		return
	}
	if k.discloses(text) {
		if err := checkConfigFile(path); err != nil {
			l.mistake(k.name, source, "a password in a file that is not private: "+err.Error(), "chmod 600 the file, or use "+k.file())
			return
		}
	}
	l.set(k, source, text)
}

func checkConfigFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return checkSecretFile(path, f)
}

// loadEnv takes the RELAY_ variables. The provider hands out names, so that an unknown one is seen here.
func (l *loader) loadEnv(environ []string) {
	byEnv := map[string]string{}
	var names []string
	for _, n := range l.names {
		byEnv[envName(n)] = n
		names = append(names, envName(n))
	}
	links := serviceLinks(environ)
	k := koanf.New(".")
	// Reading from memory cannot fail.
	_ = k.Load(env.Provider(".", env.Opt{
		Prefix:      envPrefix,
		EnvironFunc: func() []string { return environ },
		TransformFunc: func(name, value string) (string, any) {
			if n, ok := byEnv[name]; ok && l.keys[n].entries != nil {
				l.mistake(n, "env "+name, errOnlyInFile.problem, errOnlyInFile.hint)
				return "", nil
			} else if ok {
				return n, value
			}
			if name != envPrefix+"CONFIG" && !strings.HasPrefix(name, envPrefix+"TEST_") && !links(name) {
				l.mistake("", "env "+name, "unknown variable", suggest(name, names, "relay config lists all keys"))
			}
			return "", nil
		},
	}), nil)
	for name, v := range k.All() {
		l.set(l.keys[name], "env "+envName(name), v.(string))
	}
}

// serviceLinks recognises the variables that Kubernetes adds for each service of a namespace: a service named
// relay yields RELAY_SERVICE_HOST, RELAY_PORT, RELAY_PORT_7070_TCP and more, none of which anybody wrote.
// Only names with such a HOST variable beside them are taken for one, so that a slip is not.
func serviceLinks(environ []string) func(name string) bool {
	var services []string
	for _, e := range environ {
		name, _, _ := strings.Cut(e, "=")
		if service, ok := strings.CutSuffix(name, "_SERVICE_HOST"); ok {
			services = append(services, service)
		}
	}
	form := regexp.MustCompile(`^_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)
	return func(name string) bool {
		return slices.ContainsFunc(services, func(s string) bool {
			rest, ok := strings.CutPrefix(name, s)
			return ok && form.MatchString(rest)
		})
	}
}

func (l *loader) loadFlags(flags *pflag.FlagSet) {
	byFlag := map[string]string{}
	for _, n := range l.names {
		byFlag[flagName(n)] = n
	}
	k := koanf.New(".")
	// A nil Koanf makes the provider leave out flags that were not given. Reading from memory cannot fail.
	_ = k.Load(posflag.ProviderWithValue(flags, ".", nil, func(name, value string) (string, any) {
		return byFlag[name], value
	}), nil)
	for name, v := range k.All() {
		source, text := "flag --"+flagName(name), v.(string)
		if k := l.keys[name]; k.discloses(text) {
			l.mistake(name, source, "a password on the command line is readable by everybody on the machine",
				fmt.Sprintf("set %s in the environment, or use %s", envName(name), k.file()))
			continue
		}
		l.set(l.keys[name], source, text)
	}
}

// set parses a value into its field and remembers the source.
func (l *loader) set(k key, source, text string) {
	if err := k.value.Set(text); err != nil {
		l.mistake(k.name, source, fmt.Sprintf("%s is not a %s", quoted(text), k.value.Type()), err.Error())
		return
	}
	l.sources[k.name] = source
}

func (l *loader) isSection(name string) bool {
	return slices.ContainsFunc(l.names, func(n string) bool { return strings.HasPrefix(n, name+".") })
}

// yamlText turns what YAML made of a value back into text. YAML has types of its own and would have a slot named 007
// become the number 7, so only what cannot have been altered is taken.
func yamlText(v any, kind string) (text, problem, hint string) {
	switch v := v.(type) {
	case nil:
		return "", "has no value", `write "" for an empty one, or leave the key out`
	case string:
		return v, "", ""
	case bool:
		if kind == kindBool {
			return fmt.Sprint(v), "", ""
		}
	case int, int64, uint64:
		if kind == kindBytes || kind == kindDuration || kind == kindNumber {
			return fmt.Sprint(v), "", ""
		}
	case []any:
		if kind == kindList {
			var list []string
			for _, e := range v {
				s, ok := e.(string)
				if !ok || strings.Contains(s, ",") {
					return "", "has an element that is not a name", "write a list of strings, in quotes where YAML sees something else"
				}
				list = append(list, s)
			}
			return strings.Join(list, ","), "", ""
		}
	}
	return "", "YAML reads the value as something else than a " + kind, "put the value in quotes"
}

// causeOf shortens the error of a file operation to what the system said.
func causeOf(err error) string {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err.Error()
	}
	return err.Error()
}

// yamlLine extracts the line number that the YAML parser tells.
func yamlLine(err error) string {
	if m := regexp.MustCompile(`line \d+`).FindString(err.Error()); m != "" {
		return ", " + m
	}
	return ""
}
