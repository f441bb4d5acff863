package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

func (p *process) configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Print the effective configuration, without secrets",
		Long: `Print the effective configuration as a configuration file, with where each value came from. Secrets are
left out. It is printed even when there are mistakes in it, which then follow.`,
		Args: noArguments,
	}
	flags := addConfigFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		l := loadConfig(flags, p.environ)
		if err := l.print(p.stdout); err != nil {
			return fmt.Errorf("print configuration: %w", err)
		}
		return l.check()
	}
	return cmd
}

// print writes the configuration in the form of a configuration file.
func (l *loader) print(w io.Writer) error {
	var b strings.Builder
	var open []string // sections
	for _, name := range l.names {
		path := strings.Split(name, ".")
		leaf, sections := path[len(path)-1], path[:len(path)-1]
		common := 0
		for common < min(len(open), len(sections)) && open[common] == sections[common] {
			common++
		}
		for depth := common; depth < len(sections); depth++ {
			fmt.Fprintf(&b, "%s%s:\n", strings.Repeat("  ", depth), sections[depth])
		}
		open = sections
		indent := strings.Repeat("  ", len(sections))
		source := l.sources[name]
		if source == "" {
			source = "default"
		}
		fmt.Fprintf(&b, "%s%s: %s # %s\n", indent, leaf, l.yaml(l.keys[name]), printable(source))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// yaml writes a value so that loading the text gives it back. A secret connection string is shown without its
// password.
func (l *loader) yaml(k key) string {
	if k.entries != nil {
		return yamlEntries(k.entries)
	}
	switch v := k.value.(type) {
	case *secretValue:
		s := Secret(*v)
		if s.Empty() || k.whole { // where it came from shows that there is one
			return `""`
		}
		return strconv.Quote(redactDSN(s.Reveal()))
	case *boolValue, *numberValue:
		return k.value.String()
	case *listValue:
		var elements []string
		for _, e := range *v {
			elements = append(elements, quoted(e))
		}
		return "[" + strings.Join(elements, ", ") + "]"
	}
	return quoted(k.value.String())
}
