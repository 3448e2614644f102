<#
.SYNOPSIS
Checks weir on a Windows node, and collects what a bug report needs.

.DESCRIPTION
Reads only. It changes neither HNS nor the rules, and sends nothing.

The report contains addresses, names of pods and policies, and ACLs. It contains no tokens, no
kubeconfig, no environment variables and no container logs. Read it before you share it.

.PARAMETER Weir
The path of weir.exe. Without it, the script looks beside itself and in PATH.

.PARAMETER Node
The name of the node in the cluster. Default: the variable NODE_NAME, or the computer name in lower
case.

.PARAMETER Kubeconfig
A kubeconfig for the comparison with the cluster. Without it, the comparison is skipped. The script
passes the path to weir.exe and does not read the file.

.PARAMETER Agent
The HTTP address of the agent.

.PARAMETER Report
A folder for the report. Without it, no report is written.

.EXAMPLE
.\check-node.ps1 -Weir C:\weir\weir.exe -Kubeconfig C:\k\config -Report C:\weir\report
#>
[CmdletBinding()]
param(
    [string] $Weir,
    [string] $Node = $(if ($env:NODE_NAME) { $env:NODE_NAME } else { $env:COMPUTERNAME.ToLowerInvariant() }),
    [string] $Kubeconfig,
    [string] $Agent = '127.0.0.1:9640',
    [string] $Report
)

Set-StrictMode -Version Latest
$ErrorActionPreference = 'Stop'
$script:Failed = 0

function Write-Result([string] $Name, [bool] $Passed, [string] $Detail, [string] $Hint) {
    if ($Passed) {
        Write-Output "ok    ${Name}: $Detail"
        return
    }
    $script:Failed++
    Write-Output "FAIL  ${Name}: $Detail"
    Write-Output "      hint: $Hint"
}

# The body of a response of the agent, also with status 503.
function Get-Agent([string] $Path) {
    $request = [System.Net.WebRequest]::Create("http://$Agent$Path")
    $request.Timeout = 5000
    $request.Proxy = $null
    try {
        $response = $request.GetResponse()
    } catch [System.Net.WebException] {
        if ($null -eq $_.Exception.Response) { throw }
        $response = $_.Exception.Response
    }
    $reader = New-Object System.IO.StreamReader($response.GetResponseStream())
    try {
        return @{ Status = [int] $response.StatusCode; Body = $reader.ReadToEnd() }
    } finally {
        $reader.Close()
        $response.Close()
    }
}

# Runs weir.exe. Returns its exit status and its output.
function Invoke-Weir([string[]] $Arguments) {
    $before = $ErrorActionPreference
    $ErrorActionPreference = 'Continue'
    try {
        $lines = & $Weir @Arguments 2>&1 | ForEach-Object { "$_" }
        return @{ Status = $LASTEXITCODE; Lines = @($lines) }
    } finally {
        $ErrorActionPreference = $before
    }
}

function Save-Text([string] $Name, [string[]] $Lines) {
    if ($Report) {
        Set-Content -Path (Join-Path $Report $Name) -Value $Lines -Encoding UTF8
    }
}

if ($Report) { New-Item -ItemType Directory -Force -Path $Report | Out-Null }

# The system.
$build = [System.Environment]::OSVersion.Version.Build
Write-Result 'system' ($build -ge 17763) "Windows build $build" 'weir needs Windows Server 2019 (build 17763) or later'
$identity = [System.Security.Principal.WindowsIdentity]::GetCurrent()
$principal = New-Object System.Security.Principal.WindowsPrincipal($identity)
$isAdministrator = $principal.IsInRole([System.Security.Principal.WindowsBuiltInRole]::Administrator)
Write-Result 'rights' $isAdministrator $(if ($isAdministrator) { 'administrator' } else { 'not an administrator' }) 'open PowerShell with "Run as administrator"'
$hns = Get-Service -Name hns -ErrorAction SilentlyContinue
$hnsState = if ($hns) { [string] $hns.Status } else { 'missing' }
Write-Result 'HNS' ($hnsState -eq 'Running') "service $hnsState" 'install the Containers feature, and run: Start-Service hns'
# The update revision distinguishes the behaviour of HNS within a build.
$release = Get-ItemProperty -Path 'HKLM:\SOFTWARE\Microsoft\Windows NT\CurrentVersion' -ErrorAction SilentlyContinue
$edition = if ($release) { "$($release.ProductName), $($release.EditionID), revision $($release.UBR)" } else { 'unknown' }
$runtime = Get-Command containerd.exe -ErrorAction SilentlyContinue
$runtimeVersion = if ($runtime) { [string] $runtime.Version } else { 'not in PATH' }
Save-Text 'system.txt' @("build $build", "edition $edition", "containerd $runtimeVersion", "HNS service $hnsState", "node $Node", "PowerShell $($PSVersionTable.PSVersion)")

# weir.exe.
if (-not $Weir) {
    $beside = Join-Path $PSScriptRoot 'weir.exe'
    $found = Get-Command weir.exe -ErrorAction SilentlyContinue
    if (Test-Path $beside) { $Weir = $beside } elseif ($found) { $Weir = $found.Source }
}
$hasWeir = $Weir -and (Test-Path $Weir)
if ($hasWeir) {
    $Weir = (Resolve-Path $Weir).Path
    $version = Invoke-Weir @('--version')
    Write-Result 'weir.exe' ($version.Status -eq 0) ($version.Lines -join ' ') 'copy weir.exe to the node again'
    Save-Text 'version.txt' $version.Lines
} else {
    Write-Output 'skip  weir.exe: not found; give its path with -Weir to compare the ACLs'
}

# The agent.
try {
    $ready = Get-Agent '/readyz'
    Write-Result 'agent' ($ready.Status -eq 200) "/readyz at $Agent has status $($ready.Status)" "the reasons: $($ready.Body.Trim())"
    $status = (Get-Agent '/status').Body | ConvertFrom-Json
    Write-Result 'node' ($status.node -eq $Node) "the agent runs for node $($status.node)" "give the name with -Node, or start the agent with --node $Node"
    foreach ($warning in @($status.warnings)) { Write-Output "      warning: $warning" }
    Save-Text 'status.json' @($status | ConvertTo-Json -Depth 10)
    Save-Text 'readyz.txt' @($ready.Body)
    Save-Text 'metrics.txt' @((Get-Agent '/metrics').Body)
} catch {
    Write-Result 'agent' $false "no answer at ${Agent}: $($_.Exception.Message)" 'start the agent, or give its address with -Agent'
}

# The ACLs on the endpoints. The commands come from the module HostNetworkingService, or from
# Microsoft's script hns.psm1.
if (Get-Command Get-HnsEndpoint -ErrorAction SilentlyContinue) {
    try {
        # A property that an endpoint lacks is empty.
        $endpoints = @(Get-HnsEndpoint | Select-Object -Property 'ID', 'IPAddress', 'VirtualNetworkName', 'Policies')
        $acls = 0
        $summary = foreach ($endpoint in $endpoints) {
            $policies = @($endpoint.Policies | Where-Object { $_ })
            $ours = @($policies | Where-Object { $_.PSObject.Properties['Id'] -and "$($_.Id)".StartsWith('weir:') })
            $acls += $ours.Count
            [pscustomobject]@{
                Id = $endpoint.ID
                Address = $endpoint.IPAddress
                Network = $endpoint.VirtualNetworkName
                Weir = $ours
                Others = $policies.Count - $ours.Count
            }
        }
        Write-Output "info  HNS: $($endpoints.Count) endpoints, $acls ACLs of weir"
        Save-Text 'endpoints.json' @(ConvertTo-Json -Depth 10 -InputObject @($summary))
        if (Get-Command Get-HnsNetwork -ErrorAction SilentlyContinue) {
            $networks = @(Get-HnsNetwork | Select-Object -Property 'Name', 'Type', 'ID')
            Save-Text 'networks.json' @(ConvertTo-Json -Depth 4 -InputObject $networks)
        }
    } catch {
        Write-Result 'endpoints' $false "HNS did not answer: $($_.Exception.Message)" 'run the script as an administrator, and check the service hns'
    }
} else {
    Write-Output 'skip  HNS: the command Get-HnsEndpoint is missing'
}

# The comparison with the cluster.
if ($hasWeir -and $Kubeconfig) {
    $live = Invoke-Weir @('render', '--live', '--node', $Node, '--kubeconfig', $Kubeconfig)
    $detail = if ($live.Status -eq 0) { 'HNS has the ACLs that it should have' } else { $live.Lines -join "`n      " }
    $hint = if ($live.Status -eq 1) { 'a difference right after a change is normal; run the script again' } else { 'correct the cause above; the token of the kubeconfig may have expired' }
    Write-Result 'rules' ($live.Status -eq 0) $detail $hint
    Save-Text 'difference.txt' $live.Lines
} else {
    Write-Output 'skip  rules: give -Weir and -Kubeconfig to compare HNS with the cluster'
}

if ($Report) { Write-Output "The report is in $Report. Read it before you share it." }
if ($script:Failed -gt 0) {
    Write-Output "$script:Failed checks failed"
    exit 1
}
Write-Output 'all checks passed'
exit 0
