; The installer for Windows; windows.py fills in @WORDS@ and makes files.nsh. Reference: NSIS Users Manual, chapter 4.
;
; An administrator's installs for everybody, another's for that user. Options: /S silent, /D=FOLDER (the last),
; /ALLUSERS or /CURRENTUSER, /SERVICE=1 (for everybody only), /SERVE="options of the service", /PATH=0, /SHORTCUTS=0,
; /FIREWALL=1. The uninstaller knows /S and /PURGE=1. The program itself edits PATH, because a text of NSIS ends after
; 1024 characters, and ends what runs from its folder, because it finds it by path and handle.
Unicode true
Target amd64-unicode
SetCompressor @COMPRESSOR@
RequestExecutionLevel user
ManifestDPIAware true
Name "Llama Appliance"
OutFile "@OUT@"
InstallDir ""
BrandingText "Llama Appliance @VERSION@"
ShowInstDetails nevershow
ShowUninstDetails nevershow
VIProductVersion "@FOUR@"
VIAddVersionKey ProductName "Llama Appliance"
VIAddVersionKey ProductVersion "@VERSION@"
VIAddVersionKey FileVersion "@VERSION@"
VIAddVersionKey FileDescription "Llama Appliance installer"
VIAddVersionKey LegalCopyright "MIT licence"

!include LogicLib.nsh
!include FileFunc.nsh
!include WinMessages.nsh
!include "@FILES@"
!define PROGRAM "llama-appliance.exe"
!define DESKTOP "llama-appliance-desktop.exe"
!define RUN "Software\Microsoft\Windows\CurrentVersion\Run"
!define ENTRY "Software\Microsoft\Windows\CurrentVersion\Uninstall\llama-appliance"

Page directory
Page instfiles
UninstPage uninstConfirm
UninstPage instfiles

Var everybody
Var scope
Var upgrade

!macro option name default
  ClearErrors
  ${GetOptions} $R0 "/${name}=" $R1
  ${If} ${Errors}
    StrCpy $R1 "${default}"
  ${EndIf}
!macroend

; $R2 is the program's status, $0 what it said; DetailPrint has both. Errors end the installation with status 3.
!macro program words
  nsExec::ExecToStack '"$INSTDIR\${PROGRAM}" ${words}'
  Pop $R2
  Pop $0
  DetailPrint "${words}: $R2 $0"
!macroend

!macro must words
  !insertmacro program `${words}`
  ${If} $R2 != 0
    SetErrorLevel 3
    MessageBox MB_OK|MB_ICONSTOP "llama-appliance ${words}: $0" /SD IDOK
    Abort
  ${EndIf}
!macroend

; $R5 becomes the path, if it is a file that something runs or holds: Windows lets nobody both write and delete it.
!macro find_used path
  ${If} $R5 == ""
  ${AndIf} ${FileExists} "${path}"
    System::Call 'kernel32::CreateFileW(w "${path}", i 0x40010000, i 7, p 0, i 3, i 0, p 0) p.r0'
    ${If} $0 = -1
      StrCpy $R5 "${path}"
    ${Else}
      System::Call 'kernel32::CloseHandle(p r0)'
    ${EndIf}
  ${EndIf}
!macroend

!macro choose_scope
  SetRegView 64
  ${GetParameters} $R0
  UserInfo::GetAccountType
  Pop $R3
  StrCpy $everybody 0
  ${If} $R3 == "Admin"
    StrCpy $everybody 1
  ${EndIf}
  ClearErrors
  ${GetOptions} $R0 "/CURRENTUSER" $R1
  ${IfNot} ${Errors}
    StrCpy $everybody 0
  ${EndIf}
  ClearErrors
  ${GetOptions} $R0 "/ALLUSERS" $R1
  ${IfNot} ${Errors}
    ${If} $R3 != "Admin"
      SetErrorLevel 2
      MessageBox MB_OK|MB_ICONSTOP "/ALLUSERS needs an administrator: use 'Run as administrator', or leave it out." /SD IDOK
      Quit
    ${EndIf}
    StrCpy $everybody 1
  ${EndIf}
  ${If} $everybody == 1
    SetShellVarContext all
    StrCpy $scope ""
  ${Else}
    SetShellVarContext current
    StrCpy $scope "--user"
  ${EndIf}
!macroend

Function .onInit
  !insertmacro choose_scope
  ${If} $INSTDIR == ""
    ReadRegStr $INSTDIR SHCTX "${ENTRY}" "InstallLocation"
  ${EndIf}
  ${If} $INSTDIR == ""
    ${If} $everybody == 1
      StrCpy $INSTDIR "$PROGRAMFILES64\Llama Appliance"
    ${Else}
      StrCpy $INSTDIR "$LOCALAPPDATA\Programs\Llama Appliance"
    ${EndIf}
  ${EndIf}
FunctionEnd

Section
  StrCpy $upgrade 0
  ${If} ${FileExists} "$INSTDIR\uninstall.exe"
    ; The old version removes what it has installed, by its own list, and keeps service, PATH, shortcuts and data.
    StrCpy $upgrade 1
    ExecWait '"$INSTDIR\uninstall.exe" /S /UPGRADE=1 _?=$INSTDIR' $R2
    ${If} $R2 != 0
      ReadRegStr $R5 SHCTX "${ENTRY}" "InUse"
      ${If} $R5 == ""
        StrCpy $R5 "The program did not let itself be stopped (status $R2)"
      ${Else}
        StrCpy $R5 "Something uses $R5"
      ${EndIf}
      SetErrorLevel 4
      MessageBox MB_OK|MB_ICONSTOP "$R5, so the installed version stays. End what uses it and try again." /SD IDOK
      Abort
    ${EndIf}
  ${EndIf}
  !insertmacro install_files
  WriteUninstaller "$INSTDIR\uninstall.exe"
  WriteRegStr SHCTX "${ENTRY}" "DisplayName" "Llama Appliance"
  WriteRegStr SHCTX "${ENTRY}" "DisplayVersion" "@VERSION@"
  WriteRegStr SHCTX "${ENTRY}" "Publisher" "Llama Appliance"
  WriteRegStr SHCTX "${ENTRY}" "DisplayIcon" "$INSTDIR\${DESKTOP}"
  WriteRegStr SHCTX "${ENTRY}" "InstallLocation" "$INSTDIR"
  WriteRegStr SHCTX "${ENTRY}" "UninstallString" '"$INSTDIR\uninstall.exe"'
  WriteRegStr SHCTX "${ENTRY}" "QuietUninstallString" '"$INSTDIR\uninstall.exe" /S'
  WriteRegDWORD SHCTX "${ENTRY}" "EstimatedSize" @KIB@
  WriteRegDWORD SHCTX "${ENTRY}" "NoModify" 1
  WriteRegDWORD SHCTX "${ENTRY}" "NoRepair" 1
  ${GetParameters} $R0
  !insertmacro option "PATH" "1"
  ${If} $R1 == 1
    !insertmacro must "service on-path $scope"
    SendMessage ${HWND_BROADCAST} ${WM_SETTINGCHANGE} 0 "STR:Environment" /TIMEOUT=5000
  ${EndIf}
  !insertmacro option "SHORTCUTS" "1"
  ${If} $R1 == 1
    SetOutPath "$INSTDIR"
    CreateShortcut "$SMPROGRAMS\Llama Appliance.lnk" "$INSTDIR\${DESKTOP}"
    WriteINIStr "$SMPROGRAMS\Llama Appliance page.url" "InternetShortcut" "URL" "http://127.0.0.1:8080/"
  ${EndIf}
  !insertmacro option "FIREWALL" "0"
  ${If} $R1 == 1
    nsExec::Exec 'netsh advfirewall firewall add rule name="Llama Appliance" dir=in action=allow program="$INSTDIR\${PROGRAM}"'
    Pop $R2
    ${If} $R2 == 0
      WriteRegDWORD SHCTX "${ENTRY}" "Firewall" 1
    ${Else}
      SetErrorLevel 5
      MessageBox MB_OK|MB_ICONEXCLAMATION "netsh refused the firewall rule ($R2); only an administrator can add it. The program is installed without it." /SD IDOK
    ${EndIf}
  ${EndIf}
  ${If} $everybody == 1
    !insertmacro option "SERVICE" "0"
    ${If} $R1 == 1
      !insertmacro option "SERVE" ""
      !insertmacro must "service install -- $R1"
      ${If} $upgrade == 0
        MessageBox MB_OK|MB_ICONINFORMATION "$0" /SD IDOK ; where the key of the service is
      ${EndIf}
    ${ElseIf} $upgrade == 1
      ReadRegDWORD $R1 SHCTX "${ENTRY}" "Paused"
      ${If} $R1 == 1
        !insertmacro must "service start"
      ${EndIf}
    ${EndIf}
  ${EndIf}
  DeleteRegValue SHCTX "${ENTRY}" "Paused"
SectionEnd

Function un.onInit
  !insertmacro choose_scope
  ${If} $everybody == 1
    ReadRegStr $R1 HKLM "${ENTRY}" "InstallLocation"
    ${If} $R1 != $INSTDIR
      StrCpy $everybody 0 ; an administrator removes what only this user has
      StrCpy $scope "--user"
      SetShellVarContext current
    ${EndIf}
  ${EndIf}
FunctionEnd

Section Uninstall
  ${GetParameters} $R0
  !insertmacro option "UPGRADE" "0"
  StrCpy $upgrade $R1
  !insertmacro option "PURGE" "0"
  StrCpy $R4 $R1
  ${If} $everybody == 1
    !insertmacro program "service status"
    ${If} $upgrade == 1
      ${If} $R2 == 0
        WriteRegDWORD SHCTX "${ENTRY}" "Paused" 1
        !insertmacro must "service stop"
      ${EndIf}
    ${ElseIf} $R4 == 1
      !insertmacro program "service uninstall --purge"
    ${Else}
      !insertmacro program "service uninstall"
    ${EndIf}
  ${EndIf}
  !insertmacro must "service end-programs"
  DeleteRegValue SHCTX "${ENTRY}" "InUse"
  StrCpy $R5 ""
  !insertmacro find_used_file
  ${If} $R5 != ""
    ${If} $upgrade == 1
      WriteRegStr SHCTX "${ENTRY}" "InUse" "$R5"
      ReadRegDWORD $R1 SHCTX "${ENTRY}" "Paused"
      ${If} $R1 == 1
        DeleteRegValue SHCTX "${ENTRY}" "Paused"
        !insertmacro program "service start"
      ${EndIf}
    ${EndIf}
    SetErrorLevel 4
    MessageBox MB_OK|MB_ICONSTOP "Something uses $R5. End it and try again." /SD IDOK
    Abort
  ${EndIf}
  ${If} $upgrade != 1
    !insertmacro program "service off-path $scope"
    SendMessage ${HWND_BROADCAST} ${WM_SETTINGCHANGE} 0 "STR:Environment" /TIMEOUT=5000
    Delete "$SMPROGRAMS\Llama Appliance.lnk"
    Delete "$SMPROGRAMS\Llama Appliance page.url"
    DeleteRegValue HKCU "${RUN}" "llama-appliance" ; "Start at login" in the icon's menu
    ReadRegDWORD $R1 SHCTX "${ENTRY}" "Firewall"
    ${If} $R1 == 1
      nsExec::Exec 'netsh advfirewall firewall delete rule name="Llama Appliance" program="$INSTDIR\${PROGRAM}"'
      Pop $R2
    ${EndIf}
    ${If} $R4 == 1
    ${AndIf} $everybody != 1
      RMDir /r "$LOCALAPPDATA\llama-appliance"
    ${EndIf}
    DeleteRegKey SHCTX "${ENTRY}"
  ${EndIf}
  SetOutPath "$TEMP"
  !insertmacro remove_files
  Delete "$INSTDIR\uninstall.exe"
  RMDir "$INSTDIR"
SectionEnd
