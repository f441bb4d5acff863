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
	section := ""
	for _, name := range l.names {
		head, leaf, nested := strings.Cut(name, ".")
		indent := ""
		switch {
		case !nested:
			leaf, section = head, ""
		case head != section:
			section = head
			fmt.Fprintf(&b, "%s:\n", section)
			fallthrough
		default:
			indent = "  "
		}
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
	switch v := k.value.(type) {
	case *secretValue:
		s := Secret(*v)
		if s.Empty() {
			return `""`
		}
		return strconv.Quote(redactDSN(s.Reveal()))
	case *boolValue:
		return v.String()
	case *listValue:
		var elements []string
		for _, e := range *v {
			elements = append(elements, quoted(e))
		}
		return "[" + strings.Join(elements, ", ") + "]"
	}
	return quoted(k.value.String())
}
