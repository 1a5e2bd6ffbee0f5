# Perl with a hash, compiled patterns, closures and a file half read.
use strict;
use warnings;

$| = 1;

sub fail { print "FAIL: @_\n"; exit 1 }

my %kept = map { $_ => join ',', reverse 1 .. $_ % 17 } 1 .. 20_000;
my $pattern = qr/^(\d+)-(\w+)$/;
my $count = 0;
my $next = sub { return ++$count };
$next->() for 1 .. 41;
open my $file, '+>', 'lines' or fail("open: $!");
print {$file} map { "$_-line\n" } 1 .. 1000;
seek $file, 0, 0;
my $first = <$file>;

print "READY\n";
sysread STDIN, my $byte, 1 or fail('a byte to go on');

$next->() == 42 or fail('a closure that counts');
for my $key (keys %kept) {
    $kept{$key} eq join(',', reverse 1 .. $key % 17) or fail("the value of $key");
}
my $number = 1;
while (my $line = <$file>) {
    chomp $line;
    $line =~ $pattern && $1 == ++$number or fail("line $number, saw $line");
}
$number == 1000 or fail("1000 lines, saw $number");
my $pid = fork // fail("fork: $!");
exit 7 if !$pid;
waitpid $pid, 0;
$? >> 8 == 7 or fail("a child's status 7, saw $?");
print "PASS\n";
